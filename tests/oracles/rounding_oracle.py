"""Oracles that round where the engine rounds by design, but compute exact sums.

The engine rounds activations that are multiplied with quantized weights to 15 bits, with a scale per 32 values, and
keys and values to the cache type (half precision by default).
"""

import gguf
import numpy as np

from localinfer import naive
from quant.matmul.layout import MAX_QUANT


class Rounded(naive.Model):
    """An oracle that rounds like the engine but computes exact sums."""

    def product(self, name: str, x: naive.Floats, matrix: naive.Floats) -> naive.Floats:
        floats = self.tensor(name).type_name in ("F32", "F16", "BF16")
        return super().product(name, x if floats else round_activations(x), matrix)

    def store_in_cache(self, kv: naive.Floats, anchors: naive.Floats | float = 0.0) -> naive.Floats:
        return kv.astype(np.float16).astype(kv.dtype)


class Quantized(Rounded):
    """An oracle with a quantized KV cache. Keys are quantized relative to their anchors."""

    kind = "f16"

    def store_in_cache(self, kv: naive.Floats, anchors: naive.Floats | float = 0.0) -> naive.Floats:
        stored_anchors = walsh_hadamard(anchors + 0 * kv).astype(np.float16)
        blocks = gguf.quantize(
            (walsh_hadamard(kv) - stored_anchors).astype(np.float32), gguf.GGMLQuantizationType[self.kind.upper()]
        )
        return walsh_hadamard(
            gguf.dequantize(blocks, gguf.GGMLQuantizationType[self.kind.upper()]).astype(kv.dtype) + stored_anchors
        )


def walsh_hadamard(x: naive.Floats) -> naive.Floats:
    """The Walsh-Hadamard transform of the last axis, which is its own inverse."""
    n = x.shape[-1]
    index = np.arange(n)
    signs = 1.0 - 2.0 * (np.bitwise_count(index[:, None] & index) % 2)
    return x @ signs.astype(x.dtype) / np.sqrt(n)


def round_activations(x: naive.Floats) -> naive.Floats:
    """Return every 32 values as integer multiples of their largest magnitude over 16,319."""
    groups = x.reshape(-1, 32)
    scale = abs(groups).max(axis=1, keepdims=True) / MAX_QUANT[2]
    return (np.rint(groups / np.where(scale > 0, scale, 1)) * scale).reshape(x.shape)
