"""Embeddings that enter a sequence in place of tokens: what an encoder makes of an image or a sound."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class MediaEmbeddings:
    """The input rows of one image (or one tile of it), or of one sound.

    `rows` are float32 (n, embedding_length * (1 + n_deepstack)): the input of the first layer, then what the first
    `n_deepstack` layers add to the residual stream after them (DeepStack; Meng et al., 2024). `digest` identifies the
    content and everything that the encoder's result depends on; equal digests have equal rows, so it stands for the
    token ids in caches.

    `coordinates`, int32 (n, 3), are the temporal, vertical and horizontal position of each row relative to the first
    row's position (M-RoPE; Wang et al., 2024); None if the rows have consecutive positions. If they are (n, 2), rows
    have consecutive positions and, besides, the column and the row at which they are in the image, -1 for those that
    are at none, and the number of the image (XD-RoPE; Tencent, 2025). The text that follows begins `n_positions` after
    the first row. In a `bidirectional` span, all rows attend to each other.
    """

    digest: bytes
    rows: NDArray[np.float32]
    n_positions: int
    coordinates: NDArray[np.int32] | None = None
    bidirectional: bool = False

    def __len__(self) -> int:
        return len(self.rows)
