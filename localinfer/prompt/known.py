"""Chat templates that have a name: the formats that llama.cpp has built in, under its names, written in jinja.

They are for files that bring no template of their own, or a bad one. None shows tools, and most leave the model's
BOS to `prompt.py`. The texts are in known.jinja, each behind a comment with its name; the formats are facts from
llama.cpp's src/llama-chat.cpp, and a test holds each to what llama.cpp writes.
"""

import re
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("known.jinja")
NAME = re.compile(r"^\{# (\S+) #\}\n", re.MULTILINE)


@cache
def known() -> dict[str, str]:
    """Name -> jinja text."""
    _, *names_and_texts = NAME.split(FILE.read_text("utf-8"))
    return {name: text.rstrip("\n") for name, text in zip(names_and_texts[::2], names_and_texts[1::2], strict=True)}
