"""The oracle: the operations of architecture files in plain numpy, written for readability.

An architecture's `build` function is called with a `NumpyBuilder` instead of a `GraphBuilder`. Each operation is
computed immediately, for all tokens. Every weight is dequantized to `dtype` (float64 by default), which is also the
precision of all operations; nothing is rounded, cached, tiled or fused. It uses no kernel of `quant` and no engine:
files are opened by `localinfer.gguf.reader`, blocks are decoded by the `gguf` package.

    model = naive.Model(open_gguf(path))
    logits = naive.forward(model, tokens)           # (n_tokens, n_vocab)
"""

from collections.abc import Iterator, Sequence

import numpy as np
from naive_builder import NumpyBuilder
from naive_math import Floats as Floats
from naive_model import Model as Model

from localinfer import architectures


def forward(model: Model, tokens: Sequence[int]) -> Floats:
    """Return the logits after each of `tokens`, which are at positions 0, 1, ...: (n_tokens, n_vocab)."""
    builder = run_builder(model, tokens)
    return builder.output.finish(np.concatenate([*output(model, builder.output.final)], axis=1))


def mtp_logits(model: Model, tokens: Sequence[int]) -> Floats:
    """Return the logits of the MTP head after each of `tokens`, given the token and the hidden states before it:
    (n_tokens, n_vocab)."""
    builder = run_builder(model, tokens)
    own, states = f"blk.{builder.block_count}.nextn.shared_head_head", builder.output.mtp_states
    return model.matmul(own, states) if model.has(f"{own}.weight") else np.concatenate([*output(model, states)], axis=1)


def final_hidden_states(model: Model, tokens: Sequence[int]) -> Floats:
    """Return the input of the output layer, or the output of an encoder: (n_tokens, n_embd)."""
    return run_builder(model, tokens).output.final


def run_builder(model: Model, tokens: Sequence[int], types: Sequence[int] = ()) -> NumpyBuilder:
    """Run the architecture's build function; `types` are the segments of a text pair that tokens belong to."""
    builder = NumpyBuilder(model, tokens, types)
    architectures.find_build_function(model.file)(builder)
    return builder


def output(model: Model, x: Floats, chunk: int = 16_384) -> Iterator[Floats]:
    """Yield the logits of `chunk` vocabulary entries at a time: (n_tokens, chunk), before scaling and soft-capping."""
    name = "output" if model.has("output.weight") else "token_embd"
    n_vocab, bias = model.file.tensors[f"{name}.weight"].shape[0], model.bias(name)
    for start in range(0, n_vocab, chunk):
        model.weights["output chunk"] = model.rows(name, slice(start, start + chunk)).astype(model.dtype)
        own = bias if isinstance(bias, float) else bias[start : start + chunk]
        product = model.matmul("output chunk", x) * model.scale_of(name) + own
        changed = model.changed("output", x)
        yield product + (changed if isinstance(changed, float) else changed[:, start : start + chunk])
