"""The tensors of an encoder, checked by name, shape and type when a builder first uses them, and those that the host
converts once: they are kept for the graphs of other image sizes."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.dequantize import dequantize
from localinfer.gguf.reader import GGUF, Tensor
from localinfer.graph.properties.tensors import Tensors
from quant.ggml import TYPES

Floats = NDArray[np.float32]
F32 = next(number for number, kind in TYPES.items() if kind.name == "F32")
FLOAT_DTYPES = {"F32": np.float32, "F16": np.uint16, "BF16": np.uint16}  # of the same size


class EncoderTensors(Tensors):
    """The tensors of an encoder, whose layers begin with `layers`, such as "v.blk."."""

    def __init__(self, f: GGUF, layers: str, block_count: int, converted: dict[str, Tensor]) -> None:
        super().__init__(f, block_count)
        self._layers, self._converted = layers, converted

    def bias(self, name: str, *shape: int) -> Tensor | None:
        """Return the bias of a matrix or a norm, if the file has it. Either all layers have it or none."""
        kind = name.removeprefix(self._layers).partition(".")[2] if name.startswith(self._layers) else ""
        names = [f"{self._layers}{number}.{kind}" for number in range(self._block_count)] if kind else [name]
        return self.floats(f"{name}.bias", *shape) if any(self.has(f"{each}.bias") for each in names) else None

    def values(self, name: str, *shape: int) -> Floats:
        """Return the values of a tensor of any type, for the host."""
        tensor = self.tensor(name, *shape)
        converted = self._once(f"{name} as floats", lambda: constant(name, dequantize(tensor)))
        floats: Floats = converted.data.view(np.float32).reshape(shape)
        return floats

    def single(self, name: str, *shape: int) -> Floats:
        """Return the values of a tensor of any type that may have axes of length 1 before the others."""
        found = self.f.tensors.get(name)
        axes = (1,) * (len(found.shape) - len(shape)) if found is not None else ()
        return self.values(name, *axes, *shape).reshape(shape)

    def transposed(self, name: str, *shape: int) -> Tensor:
        """Return the transpose of a matrix, which has this shape in the file."""
        tensor = self.tensor(name, *shape)
        return self._once(f"{name} transposed", partial(transpose, tensor))

    def padded_columns(self, name: str, n_out: int, n_in: int, padded: int) -> Tensor:
        """Return a matrix (n_out, n_in) with columns of zeros up to `padded`."""
        tensor = self.tensor(name, n_out, n_in)
        if n_in == padded:
            return tensor
        return self._once(f"{name} padded to {padded}", lambda: pad_columns(tensor, padded))

    def columns_by_patch(self, name: str, n_out: int, n: int, size: int) -> Tensor:
        """Return a convolution over size x size rows of n values as a matrix whose columns are in the order
        [row][value]; in the file it is a convolution, or a matrix in the order [value][row]."""
        found = self.f.tensors.get(name)
        is_matrix = found is not None and len(found.shape) == 2
        tensor = self.tensor(name, *((n_out, n * size**2) if is_matrix else (n_out, n, size, size)))

        def convert() -> Tensor:
            values = dequantize(tensor).reshape(n_out, n, size**2).transpose(0, 2, 1)
            return constant(name, values.reshape(n_out, -1))

        return self._once(f"{name} by patch", convert)

    def depthwise_by_tap(self, name: str, n: int, size: int) -> Tensor:
        """Return the weights of a depthwise convolution over size x size rows of n values, float32 (rows, n)."""
        tensor = self.tensor(name, n, 1, size, size)
        return self._once(f"{name} by tap", lambda: constant(name, dequantize(tensor).reshape(n, -1).T))

    def patch_matrix(
        self, names: tuple[str, ...], n_out: int, channels: int, size: int, *, side_by_side: bool = False
    ) -> Tensor:  # fmt: skip
        """Return the sum of convolutions over patches as a matrix, (n_out, channels * size * size padded to a multiple
        of 32). `side_by_side`, their columns follow each other instead, for patches of several frames."""
        n_in = channels * size * size
        shape: tuple[int, ...] = (n_out, channels, size, size)
        for name in names:
            if name in self.f.tensors and self.f.tensors[name].shape != shape:
                shape = (n_out, n_in)  # some files have the matrix

        def convert() -> Tensor:
            values = [dequantize(self.tensor(name, *shape)).reshape(n_out, n_in) for name in names]
            whole = np.concatenate(values, axis=1) if side_by_side else sum(values[1:], values[0])
            return constant(names[0], np.pad(whole, ((0, 0), (0, -whole.shape[1] % 32))))

        for name in names:
            self.tensor(name, *shape)
        return self._once(("|" if side_by_side else "+").join(names), convert)

    def _once(self, key: str, convert: Callable[[], Tensor]) -> Tensor:
        if key not in self._converted:
            self._converted[key] = convert()
        return self._converted[key]


def constant(name: str, values: NDArray[np.float32]) -> Tensor:
    """Return float32 values in memory as a tensor."""
    contiguous = np.ascontiguousarray(values, np.float32)
    return Tensor(name, contiguous.shape, F32, contiguous.reshape(-1).view(np.uint8), 0)


def transpose(tensor: Tensor) -> Tensor:
    """Return the transpose of a matrix; that of a quantized one is float32."""
    floats = unquantized(tensor)
    values = floats.data.view(FLOAT_DTYPES[floats.type_name]).reshape(floats.shape).T
    return Tensor(tensor.name, values.shape, floats.type, np.ascontiguousarray(values).reshape(-1).view(np.uint8), 0)


def pad_columns(tensor: Tensor, padded: int) -> Tensor:
    """Return a matrix with columns of zeros up to `padded`; a quantized one becomes float32."""
    floats = unquantized(tensor)
    n_out, n_in = floats.shape
    values = np.zeros((n_out, padded), FLOAT_DTYPES[floats.type_name])
    values[:, :n_in] = floats.data.view(values.dtype).reshape(n_out, n_in)
    return Tensor(tensor.name, values.shape, floats.type, values.reshape(-1).view(np.uint8), 0)


def unquantized(tensor: Tensor) -> Tensor:
    """Return a tensor of floats as it is, and another one as float32."""
    return tensor if tensor.type_name in FLOAT_DTYPES else constant(tensor.name, dequantize(tensor))
