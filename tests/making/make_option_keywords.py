"""Write localinfer/options/keywords.py: the types of keyword arguments, from the table of options.

    python tests/making/make_option_keywords.py
"""

import sys
from pathlib import Path
from typing import get_type_hints

sys.path.append(str(Path(__file__).parents[1]))
from locations import CHECKOUT

from localinfer.options import FLAGS, Options
from localinfer.options.layers import KEYWORD_ALIASES

PAGE = CHECKOUT / "localinfer" / "options" / "keywords.py"
HEAD = '''"""The types of keyword arguments that set options: made by tests/making/make_option_keywords.py, do not edit.

`RunKeywords` are accepted by every method that generates, `LoadKeywords` by `load` and `Model`.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

'''
LOADING = ("model", "draft", "media", "adapters")  # sections of options that only `load` accepts
WIDER = {
    **dict.fromkeys(("logit_bias", "lora_scales"), "Sequence[str] | Mapping[int, float]"),
    "override_kv": "str | Sequence[str] | Mapping[str, bool | int | float | str]",
}


def text() -> str:
    """Return the module."""
    run = [name for name, flag in FLAGS.items() if flag.section not in LOADING]
    load = [name for name in FLAGS if name not in run]
    lines = [HEAD, "class OptionKeywords(TypedDict, total=False):", '    """Options of runs."""', ""]
    lines += [f"    {name}: {annotation(name)}" for name in run]
    lines += ["", *aliases(run)]
    lines += ["", "", "class RunKeywords(OptionKeywords, total=False):", '    """Options of one run."""', ""]
    lines += ["    schema: object  # a JSON schema as a dict or text, a pydantic model or a type adapter"]
    lines += ["", "", "class LoadKeywords(OptionKeywords, total=False):"]
    lines += ['    """Options of a model, and defaults of its runs."""', ""]
    lines += [f"    {name}: {annotation(name)}" for name in load]
    lines += ["", *aliases(load)]
    return "\n".join(lines) + "\n"


def aliases(names: list[str]) -> list[str]:
    """Return the lines of the aliases of these options."""
    return [f"    {alias}: {annotation(name)}  # {name}" for alias, name in KEYWORD_ALIASES.items() if name in names]


def annotation(name: str) -> str:
    """Return the type of the values that an option accepts."""
    hint = get_type_hints(Options)[name]
    if name in WIDER:
        return WIDER[name]
    if hint == tuple[str, ...]:
        return "str | Sequence[str]"
    return str(hint).removeprefix("typing.").replace("'", '"') if "Literal" in str(hint) else hint.__name__


if __name__ == "__main__":
    PAGE.write_text(text())
