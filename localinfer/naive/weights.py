"""The weights of the naive forward pass, decoded in plain numpy."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from localinfer.gguf.reader import GGUF, Tensor
from localinfer.graph.properties.adapters import Adapters
from localinfer.graph.properties.repeated_layers import with_repeated_layers
from localinfer.graph.properties.router import router_bias
from localinfer.naive.formulas import Floats
from localinfer.naive.tensor_types import decode
from localinfer.runtime.media.media_embeddings import MediaEmbeddings

ROPE_FACTORS = ("rope_freqs", "rope_factors_short", "rope_factors_long")


class Model:
    """A file's weights as plain matrices, decoded at first use and then cached, and what changes the computation.

    Matrices with more than `whole` values are not cached: `chunk` values of them are decoded at a time.
    """

    whole, chunk = 1 << 27, 1 << 23

    def __init__(self, file: GGUF, dtype: DTypeLike = np.float64) -> None:
        self.file, self.dtype = with_repeated_layers(file), np.dtype(dtype)
        self.weights: dict[str, Floats] = {}
        self.n_ctx = self.sinks = 0  # if set, the context shift policy: see attend
        self.ctx_size = 0  # the context length for RoPE extension; 0: the trained one
        self.factors = {name: self[name] for name in ROPE_FACTORS if self.has(f"{name}.weight")}
        self.scale: float | None = None  # overrides the architecture's scale of the scores
        self.media: Sequence[MediaEmbeddings] = ()  # what negative token ids stand for: -1 - k is row k of all
        self.patches: dict[str, Callable[[Floats], Floats]] = {}  # changes of activations, by the name of the point
        self.batch_ends: Sequence[int] = ()  # where batches end before the last one: states are points there
        self.anchored = False  # whether keys are cached relative to anchors
        # Low-rank changes by tensor name: A, B and the factor of each. With experts, A and B have a dimension for them.
        self.changes: Mapping[str, Sequence[tuple[Floats, Floats, float]]] = {}
        self.directions: Mapping[int, Floats] = {}  # control vectors, by the layer after which they are added

    def use_adapters(self, adapters: Adapters) -> None:
        """Use LoRA adapters and control vectors."""
        self.changes = {
            name: [
                (pair.a.astype(self.dtype), pair.b.astype(self.dtype), pair.factor * adapters.scales[pair.adapter])
                for pair in pairs
            ]
            for name, pairs in adapters.pairs.items()
        }
        self.directions = {layer: values.astype(self.dtype) for layer, values in adapters.directions.items()}

    def has(self, name: str) -> bool:
        """Return whether the file has a tensor of this name."""
        return name in self.file.tensors

    @property
    def output_matrix(self) -> str:
        """The name of the output layer's matrix: without one of its own, the token embedding."""
        return "output" if self.has("output.weight") else "token_embd"

    def __getitem__(self, name: str) -> Floats:
        """Return the tensor `<name>.weight`, rows first: a matrix is (n_out, n_in)."""
        if name not in self.weights:
            self.weights[name] = self.rows(name).astype(self.dtype)
        return self.weights[name]

    def numbers(self, name: str) -> Floats:
        """Return a float32 tensor whose name has no suffix."""
        tensor = self.file.tensors[name]
        return tensor.data.view(np.float32).astype(self.dtype).reshape(tensor.shape)

    def vector(self, name: str) -> Floats:
        """Return a float32 tensor as a vector."""
        return self.file.tensors[name].data.view(np.float32).astype(self.dtype)

    def bias(self, name: str) -> Floats | float:
        """Return the tensor `<name>.bias`, (n_out,), or 0."""
        if not self.has(f"{name}.bias"):
            return 0.0
        tensor = self.file.tensors[f"{name}.bias"]
        return tensor.data.view(np.float32).astype(self.dtype).reshape(tensor.shape)

    def router_bias(self, prefix: str) -> Floats:
        """Return what is added to the router's probabilities of a layer, (n_expert,), or (1,) with 0."""
        name = router_bias(self.file, prefix)
        return self.numbers(name) if name else np.zeros(1, self.dtype)

    def tensor(self, name: str) -> Tensor:
        """Return the tensor `<name>.weight`, or the one of this name."""
        return self.file.tensors[name if self.has(name) else f"{name}.weight"]

    def rows(self, name: str, rows: slice | NDArray[np.int64] = slice(None)) -> NDArray[np.float32]:
        """Return some rows of a tensor, decoded and not cached."""
        tensor = self.tensor(name)
        bytes_of_rows = tensor.data.reshape(*tensor.shape[:-1], -1)[rows]
        return decode(bytes_of_rows, tensor.type)

    def matmul(self, name: str, x: Floats) -> Floats:
        """Multiply (n, n_in) -> (n, n_out)."""
        return np.concatenate([*self.partial_products(name, x)], axis=1)

    def partial_products(self, name: str, x: Floats) -> Iterator[Floats]:
        """Yield the product with a matrix: all of it, or with a part of a large matrix after the other."""
        n_out, n_in = self.file.tensors[f"{name}.weight"].shape
        n_rows = n_out if n_out * n_in <= self.whole else max(1, self.chunk // n_in)
        change = self.changed("output" if name == "token_embd" else name, x)  # its own adapters change the lookup
        for first in range(0, n_out, n_rows):
            rows = slice(first, first + n_rows)
            matrix = self[name] if n_rows == n_out else self.rows(name, rows).astype(self.dtype)
            added = change if isinstance(change, float) else change[:, rows]
            yield self.product(name, x, matrix) * self.scale_of(name) + added

    def changed(self, name: str, x: Floats, expert: int | None = None) -> Floats | float:
        """Return what adapters add to the product of a matrix, or of an expert's, with x."""
        total: Floats | float = 0.0
        tensor = self.file.tensors.get(f"{name}.weight")
        for a, b, factor in self.changes.get(tensor.name if tensor else f"{name}.weight", ()):
            a, b = (each if expert is None else each[expert] for each in (a, b))
            total = total + factor * ((x @ a.T) @ b.T)
        return total

    def changed_embeddings(self, ids: NDArray[np.int64]) -> Floats | float:
        """Return what adapters add to the rows of token_embd: A has a row for each token."""
        pairs = self.changes.get("token_embd.weight", ())
        return sum((factor * (a[list(ids)] @ b.T) for a, b, factor in pairs), start=0.0)

    def scale_of(self, name: str) -> Floats | float:
        """Return the scale of the products of a matrix."""
        given = self.has(f"{name}.scale") and self.file.tensors[f"{name}.scale"].shape == (1,)
        return self.numbers(f"{name}.scale") if given else 1.0

    def expert(self, name: str, number: int, x: Floats, n_out: int = 0) -> Floats:
        """Multiply with one of many matrices, and add its bias: (n, n_in) -> (n, n_out). They may also be stored as one
        matrix, if `n_out` says how many of its rows belong to each."""
        if (key := f"{name} {number}") not in self.weights:
            is_one = len(self.file.tensors[f"{name}.weight"].shape) == 2
            rows = slice(number, number + 1) if not is_one else slice(n_out * number, n_out * (number + 1))
            matrix = self.rows(name, rows).astype(self.dtype)
            self.weights[key] = matrix if is_one else matrix[0]
        factor, bias = self.numbers(f"{name}.scale")[number] if self.has(f"{name}.scale") else 1.0, self.bias(name)
        product = self.product(name, x, self.weights[key]) * factor
        return product + (bias if isinstance(bias, float) else bias[number]) + self.changed(name, x, number)

    # Subclasses override these methods to round.

    def product(self, name: str, x: Floats, matrix: Floats) -> Floats:  # noqa: ARG002 (what is rounded depends on it)
        """Multiply x, (n, n_in), with some rows of the tensor of this name, or with the matrix of an expert."""
        return x @ matrix.T

    def store_in_cache(self, kv: Floats, anchors: Floats | float = 0.0) -> Floats:  # noqa: ARG002 (for subclasses)
        """Return keys or values (heads, n_tokens, head_size) as the cache would return them; `anchors` are those of the
        keys."""
        return kv
