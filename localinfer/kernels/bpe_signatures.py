"""The kernels of byte-pair encoding, and the constants that they share with their callers. This module does not import
numba.
"""

from quant.jit.kernel import Kernel, make_kernel

NO_TOKEN, CONTROL_TOKEN = -1, -2  # in place of an id: a text without a token, and one that text must not become
NOTHING, LINE_BREAKS, WORDS = range(3)  # what is a token without merging, if it is one: see `merge_words`

INDEX_STRINGS = make_kernel(
    "localinfer.kernels.bpe:index_strings", ("table", "count", "gap", "result"), frozenset(), {}
)
MERGE_WORDS = make_kernel(
    "localinfer.kernels.bpe:merge_words",
    (
        "tokens", "merges", "mergeable", "byte_ids", "alphabet", "unmerged", "text", "spans", "count", "encoded",
        "symbols", "heap", "ids", "result",
    ),
    frozenset(), {},
)  # fmt: skip
KERNELS = INDEX_STRINGS, MERGE_WORDS
TOKENIZER_MODELS = ("gpt2", "gemma4", "whitespace", "hybriddna")  # values of tokenizer.ggml.model


def tokenizer_kernels(model: str) -> tuple[Kernel, ...]:
    """Return the kernels that the tokenizer of a model needs, by its `tokenizer.ggml.model`."""
    return KERNELS if model in TOKENIZER_MODELS else ()
