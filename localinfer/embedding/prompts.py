"""Prompts of an embedding model: texts that are put before a query or a document, which it was trained with.

sentence-transformers keeps them in config_sentence_transformers.json, and conversion in the metadata of the file:

    sentence_transformers.prompt.NAME           the text
    sentence_transformers.default_prompt_name   the one that is used if none is named
"""

from collections.abc import Mapping
from dataclasses import dataclass

from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.gguf.pooling import DEFAULT_PROMPT_KEY, PROMPT_KEY
from localinfer.gguf.reader import GGUF

QUERY_NAMES = ("query",)  # as sentence-transformers' encode_query and encode_document look them up
DOCUMENT_NAMES = ("document", "passage", "corpus")


@dataclass(frozen=True)
class Prompts:
    """The prompts by name, and the name of the default one ("": none)."""

    by_name: Mapping[str, str]
    default: str = ""

    def select(self, name: str | None = None, prompt: str | None = None) -> str:
        """Return `prompt` if it is given, else the prompt with this name, else the default one, "" if there is none.

        Raises UsageError for a name that the model does not have, or for both a name and a prompt.
        """
        if name is not None and prompt is not None:
            raise UsageError("prompt_name (--prompt-name): prompt_prefix (--prompt-prefix) is given, too")
        if prompt is not None:
            return prompt
        wanted = self.default if name is None else name
        if wanted in self.by_name:
            return self.by_name[wanted]
        if name is None:
            return ""
        known = ", ".join(map(printable, self.by_name)) or "none: prompt_prefix (--prompt-prefix) sets a text"
        raise UsageError(f"prompt_name (--prompt-name): {printable(repr(name), 80)}: the model file has {known}")

    def named(self, names: tuple[str, ...]) -> str | None:
        """Return the first of these names that the model has, or None."""
        return next((name for name in names if name in self.by_name), None)


def read_prompts(f: GGUF) -> Prompts:
    """Return the prompts of a model file. Raises LocalInferError if a key is not a text."""
    keys = [key for key in f.metadata if key.startswith(PROMPT_KEY)]
    return Prompts({key.removeprefix(PROMPT_KEY): f.get(key, str) for key in keys}, f.get(DEFAULT_PROMPT_KEY, str, ""))
