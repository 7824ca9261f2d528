"""The names of stored prefixes.

A prefix is divided into blocks of BLOCK_TOKENS tokens. The digest of a block covers the model, the settings that change
bits, and all tokens up to its end, so blocks of equal names have equal contents, whoever wrote them. Rows of images and
sounds are named by the digest of their content and their number in it.
"""

import json
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from itertools import accumulate, chain

import numpy as np

from localinfer.kernels.layout import PAGE_SIZE
from localinfer.runtime.media.media_table import MediaTable
from localinfer.runtime.snapshot import Identity

BLOCK_PAGES = 1
BLOCK_TOKENS = BLOCK_PAGES * PAGE_SIZE
DIGEST_BYTES = 16


def root_digest(identity: Identity) -> str:
    """Return the digest of a model and its settings, which begins each chain of blocks."""
    return blake2b(json.dumps(identity).encode(), digest_size=DIGEST_BYTES).hexdigest()


def extend_digest(digest: str, tokens: Sequence[int], media: MediaTable | None = None) -> str:
    """Return the digest of a prefix that continues another one with `tokens`; `media` has their media rows."""
    ids, contents = np.array(tokens, "<i4"), list[bytes]()
    for run in media.runs(tokens) if media else ():
        ids[run.at : run.at + run.n_rows] = -1 - np.arange(run.row, run.row + run.n_rows)
        contents += len(run.span.digest).to_bytes(4, "little"), run.span.digest
    content = b"".join(chain([bytes.fromhex(digest), ids.tobytes()], contents))
    return blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


def block_digests(root: str, tokens: Sequence[int], media: MediaTable | None = None) -> list[str]:
    """Return the digest of the empty prefix, and those after each whole block of `tokens`."""
    starts = range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS)
    blocks = (tokens[at : at + BLOCK_TOKENS] for at in starts)
    return list(accumulate(blocks, partial(extend_digest, media=media), initial=root))
