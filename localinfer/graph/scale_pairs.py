"""Scale pairs: places of a compute graph where factors can move from one weight to another (AWQ; Lin et al., 2023).

    for pair in find_scale_pairs(model_graph):
        pair.divided, pair.products     # divide the former by s, multiply the columns of the latter by s

The model computes the same function after this, but the columns of matrices have other magnitudes, so quantization has
another error. Values can be divided where a tensor makes them, and only matrix products read them:

- the result of a norm, by its weight and bias;
- `up` in a gated unit act(gate) * up, unless the unit limits it, too, by the rows of its matrix;
- the values that attention averages, by the rows of their matrix. Query heads of the same key head share factors.

What reads and writes a buffer follows from the ops. A pair is left out if anything else reads the values, changes them,
or uses one of its tensors: experts, a router by modality, a cache that other layers read, tied weights.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.reader import Tensor
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.ops.op import Argument, Op
from localinfer.graph.properties.attention import AttentionHeads
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.kernels.signatures import (
    APPEND,
    ATTENTION,
    COMBINE,
    GATED_ACTIVATION,
    LAYER_NORM,
    PRODUCT,
    QUANTIZE,
    RMS_NORM,
    TO_BF16,
    KernelSignature,
)

NOT_LINEAR_IN_UP = re.compile(r"clamped_swiglu|\w+:.*")  # gated units that limit up, too
OUTPUTS = {"y", "q", "q_out"}  # parameters that get a result and its converted representation

Arguments = Mapping[str, Argument]


class TensorRows(NamedTuple):
    """`n` rows of a matrix, or elements of a vector, from `first` on."""

    name: str
    first: int
    n: int


class ScalePair(NamedTuple):
    """Tensors between which factors can move in layer `block`.

    The rows `divided` make the same values: those of a matrix and its bias, or of a norm. Column j of the matrices
    `products` is multiplied by the factor of row columns[j] of them, int64 (n_in,).
    """

    block: int
    divided: tuple[TensorRows, ...]
    products: tuple[str, ...]
    columns: NDArray[np.int64]

    @property
    def n_factors(self) -> int:
        """The number of factors."""
        return self.divided[0].n

    @property
    def tensors(self) -> set[str]:
        """The names of all tensors that change."""
        return {*self.products, *(rows.name for rows in self.divided)}


def find_scale_pairs(model: ModelGraph) -> list[ScalePair]:
    """Return the scale pairs in the layers of a graph without hooks, in order."""
    used = [each for op in model.graph.ops for each in op.arguments if isinstance(each, Tensor)]
    uses = _Uses([*used, *(product.weight for product in model.graph.products if product.runs)])
    found = (each for number in range(len(model.block_starts)) for each in _BlockOps(model, number).pairs())
    return [each.to_pair(model) for each in found if each.is_only_user(model, uses)]


class _Uses:
    """How often ops use tensors and parts of tensors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._by_name: dict[str, list[Tensor]] = {}
        for tensor in tensors:
            self._by_name.setdefault(tensor.name, []).append(tensor)

    def of_tensor(self, name: str) -> int:
        """Return the number of uses of a tensor or of parts of it."""
        return len(self._by_name[name])

    def of_rows(self, rows: Tensor) -> int:
        """Return the number of uses of rows of a tensor, or of some of them."""
        end = rows.offset + rows.nbytes
        return sum(rows.offset < each.offset + each.nbytes and each.offset < end for each in self._by_name[rows.name])


class _Found(NamedTuple):
    """The tensors of a pair in a layer: `made_by`, each of which one op uses, and `weights`, once for each use."""

    block: int
    made_by: Sequence[Tensor]
    weights: Sequence[Tensor]
    columns: NDArray[np.int64]

    def is_only_user(self, model: ModelGraph, uses: _Uses) -> bool:
        """Return whether the file has all of the tensors, and nothing else uses them."""
        is_used_once = all(uses.of_rows(rows) == 1 for rows in self.made_by)
        counts = Counter(weight.name for weight in self.weights)
        are_in_file = {*counts, *(rows.name for rows in self.made_by)} <= model.f.tensors.keys()
        return are_in_file and is_used_once and all(uses.of_tensor(name) == count for name, count in counts.items())

    def to_pair(self, model: ModelGraph) -> ScalePair:
        """Return the pair with the names of its tensors."""
        rows = tuple(rows_in_file(model, tensor) for tensor in self.made_by)
        return ScalePair(self.block, rows, tuple(dict.fromkeys(each.name for each in self.weights)), self.columns)


class _BlockOps:
    """The ops of a layer. Its buffers are not read by other layers, except for the residual stream and those that
    layers share, which no norm and no product writes as a whole."""

    def __init__(self, model: ModelGraph, number: int) -> None:
        self._model, self._number, (first, end) = model, number, model.block_ops(number)
        self._ops = model.graph.ops[first:end]
        self._arguments = [dict(zip(op.small_batch.parameters, op.arguments, strict=True)) for op in self._ops]
        buffers = (each for op in model.graph.ops for each in op.arguments if isinstance(each, Buffer))
        self._owners = {id(each): x for x in buffers for each in (x.quantized, x.bf16)}

    def pairs(self) -> Iterator[_Found]:
        """Yield the pairs of the layer, of which some may use tensors that are also used elsewhere."""
        for number, op in enumerate(self._ops):
            if is_call_of(op, RMS_NORM, LAYER_NORM):
                found = self._after_norm(number)
            elif is_call_of(op, GATED_ACTIVATION):
                found = self._after_gate(number)
            else:
                found = self._after_attention(number) if is_call_of(op, ATTENTION) else None
            if found:
                yield found

    def _after_norm(self, number: int) -> _Found | None:
        given = self._arguments[number]
        y, made_by = given["y"], [given[key] for key in ("weight", "bias") if key in given]
        assert isinstance(y, Buffer)
        weights = self._products_of(y, number + 1) if given["x"] is not y else []
        tensors = [tensor for tensor in made_by if isinstance(tensor, Tensor)]
        return self._found(tensors, weights, np.arange(y.n))

    def _after_gate(self, number: int) -> _Found | None:
        given, activation = self._arguments[number], dict(self._ops[number].small_batch.constants)["activation"]
        gate, up = given["gate"], given["up"]
        assert isinstance(gate, Buffer)
        if NOT_LINEAR_IN_UP.fullmatch(str(activation)) or not isinstance(up, Buffer) or up is gate or up.n != gate.n:
            return None
        return self._found(self._made_by(up, number), self._products_of(gate, number + 1), np.arange(gate.n))

    def _after_attention(self, number: int) -> _Found | None:
        """Values are in the cache between the product that makes them and attention."""
        layers = self._model.attention.layers
        name = self._ops[number].name.removesuffix("attention")
        layer = layers[name][0]
        if layer.kv_source or any(other.kv_source == name for other, _ in layers.values()):
            return None
        y, append = self._arguments[number]["y"], self._append_of(name)
        assert isinstance(y, Buffer)
        v = self._arguments[append]["v"] if append is not None else None
        if append is None or not isinstance(v, Buffer) or not is_call_of(self._ops[number + 1], COMBINE):
            return None
        return self._found(self._made_by(v, append), self._products_of(y, number + 2), value_columns(layer.heads))

    def _found(self, made_by: Sequence[Tensor], weights: Sequence[Tensor], columns: NDArray[np.int64]) -> _Found | None:
        return _Found(self._number, made_by, weights, columns) if made_by and weights else None

    def _append_of(self, layer: str) -> int | None:
        """Return the number of the op that adds the keys and values of a layer to the cache."""
        named = (number for number, op in enumerate(self._ops) if op.name == f"{layer}append")
        return next((number for number in named if is_call_of(self._ops[number], APPEND)), None)

    def _made_by(self, y: Buffer, reader: int) -> Sequence[Tensor]:
        """Return the matrix and the bias that make y, if no other op reads or changes it than op number `reader`."""
        makers = [number for number in range(reader) if self._defines(number, y)]
        if not makers or not is_call_of(self._ops[makers[-1]], PRODUCT):
            return []
        given, readers = self._arguments[makers[-1]], [each for each, _ in self._readers(y, makers[-1] + 1)]
        return [each for each in (given["w"], given["base"]) if isinstance(each, Tensor)] if readers == [reader] else []

    def _products_of(self, y: Buffer, first: int) -> Sequence[Tensor]:
        """Return the matrices that y is multiplied with from an op on, if it is used for nothing else."""
        readers = list(self._readers(y, first))
        if any(parameters != {"x"} or not is_call_of(self._ops[number], PRODUCT) for number, parameters in readers):
            return []
        return [each for number, _ in readers if isinstance(each := self._arguments[number]["w"], Tensor)]

    def _readers(self, y: Buffer, first: int) -> Iterator[tuple[int, set[str]]]:
        """Yield the ops from `first` on that read or change what is in y, with the parameters that get it."""
        for number in range(first, len(self._ops)):
            if is_call_of(self._ops[number], QUANTIZE, TO_BF16):
                continue  # it converts x for products, which read the result
            if self._defines(number, y):
                return
            if parameters := self._parameters(number, y):
                yield number, parameters

    def _defines(self, number: int, y: Buffer) -> bool:
        """Return whether an op writes all of y, and does not read it."""
        given, parameters = self._arguments[number], self._parameters(number, y)
        is_whole = given["n_out"] == y.n if is_call_of(self._ops[number], PRODUCT) else True
        known = is_call_of(self._ops[number], PRODUCT, RMS_NORM, LAYER_NORM, ATTENTION)
        return known and is_whole and bool(parameters) and parameters <= OUTPUTS

    def _parameters(self, number: int, y: Buffer) -> set[str]:
        """Return the parameters of an op that get y, or its quantized or bfloat16 representation."""
        return {key for key, each in self._arguments[number].items() if each is y or self._owners.get(id(each)) is y}


def is_call_of(op: Op, *signatures: KernelSignature) -> bool:
    """Return whether an op calls the kernel of one of these signatures."""
    kernel = op.small_batch
    return any(
        kernel.parameters == each.parameters and each.small_batch in ("", f"{kernel.module}:{kernel.function}")
        for each in signatures
    )


def value_columns(heads: AttentionHeads) -> NDArray[np.int64]:
    """Return the index of the value that each column of the matrix after attention is an average of."""
    of_heads = np.arange(heads.count_kv * heads.value).reshape(heads.count_kv, heads.value)
    return np.repeat(of_heads, heads.group, axis=0).reshape(-1)


def rows_in_file(model: ModelGraph, tensor: Tensor) -> TensorRows:
    """Return which rows of a tensor in the file a tensor is, which may be a slice of it."""
    whole = model.f.tensors[tensor.name]
    first = (tensor.offset - whole.offset) // (whole.nbytes // whole.shape[0])
    return TensorRows(tensor.name, first, tensor.shape[0])
