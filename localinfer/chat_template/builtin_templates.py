"""Built-in chat templates: the formats that llama.cpp has built in, under the same names, written in Jinja.

They are for files without a chat template, or with a broken one. None of them supports tools, and most leave BOS to
`prompt.py`. `builtin_templates.jinja` contains the sources, each after a comment with its name. The formats come from
llama.cpp's src/llama-chat.cpp, and a test compares each template with the output of llama.cpp.
"""

import re
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("builtin_templates.jinja")
NAME = re.compile(r"^\{# (\S+) #\}\n", re.MULTILINE)


@cache
def builtin_templates() -> dict[str, str]:
    """Return the Jinja source of each built-in template, by name."""
    _, *names_and_texts = NAME.split(FILE.read_text("utf-8"))
    return {name: text.rstrip("\n") for name, text in zip(names_and_texts[::2], names_and_texts[1::2], strict=True)}
