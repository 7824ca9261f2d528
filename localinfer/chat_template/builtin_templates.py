"""Built-in chat templates, for files without a chat template, or with a broken one.

    builtin_templates.jinja  the formats that llama.cpp has built in, under the same names, written in Jinja. None of
                             them supports tools, and most leave BOS to `prompt.py`. The formats come from llama.cpp's
                             src/llama-chat.cpp, and a test compares each template with the output of llama.cpp.
    model_templates.jinja    the formats of models whose repositories have a Python program instead of a template. They
                             support tools and reasoning, and render what the program returns.

Each source follows a comment with its name.
"""

import re
from functools import cache
from pathlib import Path

LLAMA_CPP_FILE = Path(__file__).with_name("builtin_templates.jinja")
MODEL_FILE = Path(__file__).with_name("model_templates.jinja")
NAME = re.compile(r"^\{# (\S+) #\}\n", re.MULTILINE)


def builtin_templates() -> dict[str, str]:
    """Return the Jinja source of each built-in template, by name."""
    return templates_of(LLAMA_CPP_FILE) | templates_of(MODEL_FILE)


@cache
def templates_of(file: Path) -> dict[str, str]:
    """Return the sources in a file, by name."""
    _, *names_and_texts = NAME.split(file.read_text("utf-8"))
    return {name: text.rstrip("\n") for name, text in zip(names_and_texts[::2], names_and_texts[1::2], strict=True)}
