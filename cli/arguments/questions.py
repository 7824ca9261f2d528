"""Words of a command line where a model or a question may stand: `localinfer "Why is the sky blue?"`."""

import os
import re
from collections.abc import Iterator

SEVERAL_WORDS = re.compile(r"\s|[^\x00-\x7f]|[?!]$")  # a name of a model has none of these
MODEL_FORM = re.compile(r"(?:hf|ollama|lmstudio|https?):|.*\.gguf$", re.DOTALL)
FILE_NAME = re.compile(r"[^\s\"'`()<>]+")
PUNCTUATION = ".,:;?!"


def is_question(word: str) -> bool:
    """Return whether a word can only be a question: several words, or one that ends in ? or !, and not a file."""
    return bool(SEVERAL_WORDS.search(word)) and not MODEL_FORM.match(word) and not os.path.exists(word)  # noqa: PTH110  # false for every string that is no path


def split_model(model: str | None, words: list[str] | None, *, has_model: bool = False) -> tuple[str | None, list[str]]:
    """Return MODEL and the words of the question, of which MODEL may be the first.

    If the command has a model already, as with --continue, each word that names no other model belongs to the question.
    """
    if model is not None and (is_question(model) or (has_model and not may_name_model(model))):
        return None, [model, *(words or [])]
    return model, words or []


def may_name_model(word: str) -> bool:
    """Return whether a word is the name or path of a model, or looks like one."""
    from localinfer.errors import ModelNotFoundError
    from localinfer.hub import resolve

    if MODEL_FORM.match(word) or os.path.exists(word):  # noqa: PTH110
        return True
    try:
        return resolve.registry_entry(word) is not None
    except ModelNotFoundError:
        return False


def named_files(text: str) -> Iterator[str]:
    """Yield the existing files that a question names, each once. Their names have a dot or a slash."""
    words = FILE_NAME.findall(text)
    names = dict.fromkeys(name for word in words for name in (word, word.rstrip(PUNCTUATION)))
    yield from (name for name in names if re.search(r"\w[./]", name) and os.path.isfile(name))  # noqa: PTH113
