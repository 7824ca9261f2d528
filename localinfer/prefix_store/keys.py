"""The names of stored prefixes.

A prefix is divided into blocks of BLOCK_TOKENS tokens. The digest of a block covers the model, the settings that change
bits, and all tokens up to its end, so blocks of equal names have equal contents, whoever wrote them.
"""

import json
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate

import numpy as np

from localinfer.kernels.layout import PAGE_SIZE
from localinfer.runtime.snapshot import Identity

BLOCK_PAGES = 1
BLOCK_TOKENS = BLOCK_PAGES * PAGE_SIZE
DIGEST_BYTES = 16


def root_digest(identity: Identity) -> str:
    """Return the digest of a model and its settings, which begins each chain of blocks."""
    return blake2b(json.dumps(identity).encode(), digest_size=DIGEST_BYTES).hexdigest()


def extend_digest(digest: str, tokens: Sequence[int]) -> str:
    """Return the digest of a prefix that continues another one with `tokens`."""
    content = bytes.fromhex(digest) + np.array(tokens, "<i4").tobytes()
    return blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


def block_digests(root: str, tokens: Sequence[int]) -> list[str]:
    """Return the digest of the empty prefix, and those after each whole block of `tokens`."""
    starts = range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS)
    return list(accumulate((tokens[at : at + BLOCK_TOKENS] for at in starts), extend_digest, initial=root))
