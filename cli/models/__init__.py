"""Commands that manage and show models, and how commands open one."""
