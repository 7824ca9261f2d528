"""The naive forward pass: what every architecture computes, in plain numpy, for all tokens at once, in float64.

An architecture file (`localinfer/architectures`) is a function of a builder. `GraphBuilder` records kernels for this
machine; the `NumpyBuilder` of `localinfer.naive.operations` computes the same operations immediately. Nothing is
rounded, cached, tiled or fused, and no kernel is used: files are opened by `localinfer.gguf.reader`, and blocks are
decoded by the `gguf` package or in `tensor_types.py`. It is written to be read, beside a paper or before a kernel, and
it is what kernels are verified with. Read `operations.py` from top to bottom; `recurrence.py` has the layers with a
recurrent state, and `formulas.py` the norms, activations and rotations that they name. `encoders/` has the encoders of
images and sounds.

    model = naive.Model(open_gguf(path))
    logits = naive.forward(model, tokens)           # (n_tokens, n_vocab)
"""

from collections.abc import Iterator, Sequence

from localinfer import architectures
from localinfer.naive.formulas import Floats as Floats
from localinfer.naive.operations import NumpyBuilder
from localinfer.naive.weights import Model as Model


def forward(model: Model, tokens: Sequence[int]) -> Floats:
    """Return the logits after each of `tokens`, which are at positions 0, 1, ...: (n_tokens, n_vocab)."""
    return run_builder(model, tokens).output.compute_logits()


def mtp_logits(model: Model, tokens: Sequence[int]) -> Floats:
    """Return the logits of the MTP head after each of `tokens`, given the token and the hidden states before it:
    (n_tokens, n_vocab)."""
    builder = run_builder(model, tokens)
    own = f"blk.{builder.block_count}.nextn.shared_head_head"
    name = own if model.has(f"{own}.weight") else model.output_matrix
    return builder.output.scaled(model.matmul(name, builder.output.mtp_states))


def final_hidden_states(model: Model, tokens: Sequence[int]) -> Floats:
    """Return the input of the output layer, or the output of an encoder: (n_tokens, n_embd)."""
    return run_builder(model, tokens).output.final


def run_builder(model: Model, tokens: Sequence[int], types: Sequence[int] = ()) -> NumpyBuilder:
    """Run the architecture's build function; `types` are the segments of a text pair that tokens belong to."""
    builder = NumpyBuilder(model, tokens, types)
    architectures.find_build_function(model.file)(builder)
    return builder


def output(model: Model, x: Floats) -> Iterator[Floats]:
    """Yield the products of hidden states with the output matrix, some vocabulary entries at a time: (n_tokens,
    entries). They are logits before a bias, scaling and soft-capping."""
    yield from model.partial_products(model.output_matrix, x)
