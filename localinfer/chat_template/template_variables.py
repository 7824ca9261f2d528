"""Detection of the variables that a chat template uses: switches for reasoning, and tools."""

import re

THINKING_VARIABLES = ("enable_thinking", "thinking")  # Qwen 3, SmolLM 3, GLM 4.5, ...; Granite, DeepSeek V3.1
VARIABLE = r"(?<![\w.'\"\[]){}(?![\w'\"(])"  # not an attribute, a string or a function call


def thinking_variables(source: str, think: str) -> dict[str, bool]:
    """Return the template variables for --think on or off; empty for auto, or if the template has no switch."""
    if think == "auto":
        return {}
    return {name: think == "on" for name in THINKING_VARIABLES if references(source, name)}


def supports_tools(source: str) -> bool:
    """Return whether the template passes tools to the model."""
    return references(source, "tools")


def references(source: str, variable: str) -> bool:
    """Return whether the template uses a variable, according to its source text."""
    return bool(re.search(VARIABLE.format(variable), source))
