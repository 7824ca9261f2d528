"""Which variables a chat template looks at: those that switch thoughts on and off, and the tools."""

import re

SWITCHES = ("enable_thinking", "thinking")  # of Qwen 3, SmolLM 3, GLM 4.5 and others; of Granite and DeepSeek V3.1
VARIABLE = r"(?<![\w.'\"\[]){}(?![\w'\"(])"  # no field of a message, no text, no function


def switches(source: str, think: str) -> dict[str, bool]:
    """What a template of this `source` is given for --think on, off or auto; nothing where it has no switch."""
    if think == "auto":
        return {}
    return {name: think == "on" for name in SWITCHES if looks_at(source, name)}


def shows_tools(source: str) -> bool:
    """Does a model learn of its tools by a template of this `source`?"""
    return looks_at(source, "tools")


def looks_at(source: str, variable: str) -> bool:
    return bool(re.search(VARIABLE.format(variable), source))
