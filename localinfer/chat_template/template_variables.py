"""Detection of the variables that a chat template uses: switches for reasoning, and tools."""

import re
from collections.abc import Sequence
from datetime import datetime

from localinfer.chat_template.conversation import REASONING_KEYS

READS_REASONING = re.compile(r"""\.reasoning\b|\[(['"])reasoning\1\]""")
DEVELOPER_ROLE = re.compile("""(['"])developer\\1""")
THINKING_VARIABLES = ("enable_thinking", "thinking")  # llama.cpp's: Qwen 3, SmolLM 3, ...; Granite, DeepSeek V3.1
EFFORT = "reasoning_effort"
THINKING_VALUES = (  # switches that are no flags: the variable, and its values without reasoning and with it
    (EFFORT, "no_think", "high"),  # Hunyuan 3 and 4
    (EFFORT, "minimal", "high"),  # Solar Open
    ("thinking_mode", "disabled", "enabled"),  # MiniMax M3
)
DATE_VARIABLES = {"date_string": "%d %b %Y", "datetime": "%b %d %Y"}  # of Llama 3.1 and later, and Firefunction
VARIABLE = r"(?<![\w.'\"\[]){}(?![\w'\"(])"  # not an attribute, a string or a function call


def thinking_variables(source: str, think: str) -> dict[str, bool | str]:
    """Return the template variables for --think; empty if the template has no switch.

    With auto, reasoning is on if the template has llama.cpp's variable, as llama.cpp does. Other switches keep the
    default of the template.
    """
    names = THINKING_VARIABLES[:1] if think == "auto" else THINKING_VARIABLES
    flags: dict[str, bool | str] = {name: think != "off" for name in names if references(source, name)}
    if flags or think == "auto":
        return flags
    switches = (each for each in THINKING_VALUES if references(source, each[0]) and has_text(source, each[1]))
    return {name: off if think == "off" else on for name, off, on in list(switches)[:1]}


def date_variables(source: str, now: datetime) -> dict[str, str]:
    """Return the variables with today's date that the template uses; without them, Llama 3's assume a day in 2024."""
    return {name: now.strftime(format) for name, format in DATE_VARIABLES.items() if references(source, name)}


def supports_tools(source: str) -> bool:
    """Return whether the template passes tools to the model."""
    return references(source, "tools")


def supports_developer_role(source: str) -> bool:
    """Return whether the template renders messages with the role `developer`; others drop them, or fail."""
    return bool(DEVELOPER_ROLE.search(source))


def reasoning_keys(source: str) -> Sequence[str]:
    """Return the keys of messages under which the template may look for the reasoning."""
    return REASONING_KEYS if READS_REASONING.search(source) else REASONING_KEYS[:2]


def has_text(source: str, text: str) -> bool:
    """Return whether the template contains this text in quotes."""
    return f"'{text}'" in source or f'"{text}"' in source


def references(source: str, variable: str) -> bool:
    """Return whether the template uses a variable, according to its source text."""
    return bool(re.search(VARIABLE.format(variable), source))
