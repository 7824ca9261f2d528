"""Special tokens that swallow the whitespace beside them, as "<|user|>\\n" of Phi-3 does.

No key of GGUF tells which. llama.cpp knows the models by their names, and a template's text must become the
same tokens here; so these are its names.
"""

from typing import NamedTuple

from localinfer.files.gguf import GGUF
from localinfer.tokenizer.marks import find
from localinfer.tokenizer.vocabulary import CONTROL, UNKNOWN, USER_DEFINED, Vocabulary

WHITESPACE = " \t\n\v\f\r"
MASKS = (  # key, parts of its value, the token that swallows what stands before it
    ("tokenizer.ggml.pre", ("jina-v2-de", "jina-v2-es", "jina-v2-code"), "<mask>"),
    ("general.architecture", ("nomic-bert-moe", "jina-bert-v3"), "<mask>"),
    ("general.name", ("modern-bert",), "[MASK]"),
)
PHI3 = ("phi-3", "phi3")  # parts of general.name: all special tokens swallow what stands behind them, but these
PHI3_EXCEPTIONS = ("<unk>", "<s>", "<|endoftext|>")


class Swallowing(NamedTuple):
    """Ids of the tokens that swallow whitespace before and behind them."""

    before: frozenset[int] = frozenset()
    behind: frozenset[int] = frozenset()


def read_swallowing(f: GGUF, vocabulary: Vocabulary) -> Swallowing:
    if _contains(f, "general.name", PHI3):
        special = vocabulary.ids_of(CONTROL, USER_DEFINED, UNKNOWN)
        return Swallowing(behind=frozenset(special) - {*find(vocabulary.tokens, PHI3_EXCEPTIONS).values()})
    masks = [mask for key, parts, mask in MASKS if _contains(f, key, parts)]
    return Swallowing(before=frozenset(find(vocabulary.tokens, masks).values())) if masks else Swallowing()


def _contains(f: GGUF, key: str, parts: tuple[str, ...]) -> bool:
    value = str(f.metadata.get(key, "")).lower()
    return any(part in value for part in parts)
