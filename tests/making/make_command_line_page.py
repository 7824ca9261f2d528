"""Update the tables of docs/command-line.md from the program's flags.

    python tests/making/make_command_line_page.py

The text between two markers in the page is generated; everything else is written by hand.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
from locations import CHECKOUT

from cli.app import COMMANDS, build_program
from cli.arguments import commands, compatibility
from cli.arguments.flags import PANELS
from localinfer.options import FLAGS, Flag

PAGE = CHECKOUT / "docs" / "command-line.md"
GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """Return the page with the generated tables updated."""
    return GENERATED.sub(lambda match: match[1] + "\n".join(GENERATORS[match[2]]()) + "\n" + match[3], text)


def settings() -> Iterator[str]:
    """Yield the tables of options that have a default and an environment variable."""
    for section, title in PANELS.items():
        yield f"\n**{title}**\n"
        flags = [flag for flag in FLAGS.values() if flag.section == section]
        rows = (
            (all_names(flag), default(flag.default), code(flag.environment_variable), flag.help) for flag in flags
        )
        yield from table(("flag", "default", "environment variable", "what it does"), rows)
    yield ""


def all_names(flag: Flag) -> str:
    return code(*flag.names, *filter(None, [flag.negative_name]))


def default(value: object) -> str:
    """Return a default as Markdown; "" for options without one, and for flags that are off."""
    if value is True:
        return "on"
    if value is None or value is False or value in ("", ()):
        return ""
    values = value if isinstance(value, tuple) else (value,)
    return code(*(str(each).replace("\n", "\\n") for each in values))


def command_options() -> Iterator[str]:
    """Yield the tables of each command's other arguments and options."""
    for name in COMMANDS:
        program: Any = build_program([name]).commands[name]
        params = {param.name: param for param in program.params if param.param_type_name == "option"}
        yield f"\n### {name}\n"
        yield f"`localinfer {' '.join([name, *(argument for argument, _ in program.arguments)])}`: {COMMANDS[name][1]}"
        with_settings = []
        for section, title in PANELS.items():
            flags = {name: flag for name, flag in FLAGS.items() if flag.section == section}
            missing = [flag.long_name for name, flag in flags.items() if name not in params]
            if len(missing) < len(flags) / 2:
                params = {name: param for name, param in params.items() if name not in flags}
                with_settings.append(f"*{title}*" + (f" (except {code(*missing)})" if missing else ""))
        if with_settings:
            yield f"It also has the options of {', '.join(with_settings)}."
        yield ""
        rows = (
            (code(*each.opts, *each.secondary_opts), each.metavar or "", default_of_parameter(each), each.help)
            for each in params.values()
            if not each.hidden
        )
        yield from table(("flag", "value", "default", "what it does"), rows)


def default_of_parameter(parameter: Any) -> str:
    """Return the default of a command's parameter, unless its help contains it."""
    value = tuple(parameter.default) if isinstance(parameter.default, list) else parameter.default
    return "" if "[default:" in parameter.help else default(value)


def equivalent_flags() -> Iterator[str]:
    meant: dict[str, list[str]] = {}
    for flag, prefix in compatibility.MODEL_FLAGS.items():
        meant.setdefault(f"{prefix}{'OWNER/REPO[:QUANT]' if prefix else 'MODEL'}", []).append(flag)
    meant["hf:OWNER/REPO/FILE.gguf"] = list(compatibility.HUB_FILE_FLAGS)
    for flag, (option, prefix) in compatibility.PREFIXED.items():
        meant.setdefault(f"{option} {prefix}OWNER/REPO[:QUANT]", []).append(flag)
    for flag, words in [
        *compatibility.EQUIVALENTS.items(),
        *compatibility.MODEL_SHORTCUTS.items(),
    ]:
        meant.setdefault(" ".join(words), []).append(flag)
    for flag, values in compatibility.BY_VALUE.items():
        for value, words in values.items():
            meant.setdefault(" ".join(words), []).append(f"{flag} {value}")
    yield from table(("theirs", "here"), ((code(*flags), code(words)) for words, flags in meant.items()))


def flags_without_effect() -> Iterator[str]:
    for heading, rows in (
        ("Always on", compatibility.ALWAYS_ON),
        ("No effect", compatibility.NO_EFFECT),
        ("Not supported (ignored with a warning)", compatibility.UNSUPPORTED),
        ("Not supported (an error, because the answer would be another one)", compatibility.REFUSED),
        *((f"No effect in `{name}`", rows) for name, rows in compatibility.NO_EFFECT_BY_COMMAND.items()),
        *((f"Not supported in `{name}` (an error)", rows) for name, rows in compatibility.REFUSED_BY_COMMAND.items()),
    ):
        yield f"\n**{heading}**\n"
        yield from table(("flags", "because"), ((code(*names(row)), row[0]) for row in rows))
    yield ""


def names(row: tuple[str, str, str]) -> list[str]:
    return [name.partition(":")[0] for name in f"{row[1]} {row[2]}".split()]


def command_aliases() -> Iterator[str]:
    same = {name: f"`localinfer {ours}`" for name, ours in commands.ALIASES.items()}
    rows = ((code(name), text) for name, text in {**same, **commands.UNSUPPORTED_COMMANDS}.items())
    yield from table(("typed", "what happens"), rows)


def code(*texts: object) -> str:
    return " ".join(f"`{text}`" for text in texts)


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; none if there are no rows."""
    lines = ["| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in row) + " |" for row in rows]
    if lines:
        headings = list(headings)
        yield f"| {' | '.join(headings)} |"
        yield "|" + "---|" * len(headings)
    yield from lines


GENERATORS = {
    "settings": settings,
    "command_options": command_options,
    "equivalent_flags": equivalent_flags,
    "flags_without_effect": flags_without_effect,
    "command_aliases": command_aliases,
}

if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
