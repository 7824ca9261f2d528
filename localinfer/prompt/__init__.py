"""From a conversation to the tokens of a prompt: templates, and the process that they run in."""
