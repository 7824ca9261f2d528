"""Special tokens that strip the whitespace next to them, such as "<|user|>\\n" of Phi-3.

GGUF has no key for this. llama.cpp recognizes the models by name, and a chat template must produce the same tokens
here, so this module uses the same names.
"""

from typing import NamedTuple

from localinfer.gguf.reader import GGUF
from localinfer.tokenizer.known_special_tokens import find_tokens
from localinfer.tokenizer.vocabulary import CONTROL, UNKNOWN, USER_DEFINED, Vocabulary

WHITESPACE = " \t\n\v\f\r"
MASKS = (  # key, substrings of its value, the token that strips whitespace to its left
    ("tokenizer.ggml.pre", ("jina-v2-de", "jina-v2-es", "jina-v2-code"), "<mask>"),
    ("general.architecture", ("nomic-bert-moe", "jina-bert-v3", "gte"), "<mask>"),
    ("general.name", ("modern-bert",), "[MASK]"),
)
PHI3 = ("phi-3", "phi3")  # substrings of general.name: all special tokens but these strip to their right
PHI3_EXCEPTIONS = ("<unk>", "<s>", "<|endoftext|>")


class WhitespaceStripping(NamedTuple):
    """Ids of the tokens that strip whitespace to their left and right."""

    left: frozenset[int] = frozenset()
    right: frozenset[int] = frozenset()


def read_whitespace_stripping(f: GGUF, vocabulary: Vocabulary) -> WhitespaceStripping:
    """Return the tokens of this model that strip whitespace."""
    if _contains(f, "general.name", PHI3):
        special = vocabulary.ids_of(CONTROL, USER_DEFINED, UNKNOWN)
        return WhitespaceStripping(
            right=frozenset(special) - {*find_tokens(vocabulary.tokens, PHI3_EXCEPTIONS).values()}
        )
    masks = [mask for key, substrings, mask in MASKS if _contains(f, key, substrings)]
    return (
        WhitespaceStripping(left=frozenset(find_tokens(vocabulary.tokens, masks).values()))
        if masks
        else WhitespaceStripping()
    )


def _contains(f: GGUF, key: str, substrings: tuple[str, ...]) -> bool:
    value = str(f.metadata.get(key, "")).lower()
    return any(substring in value for substring in substrings)
