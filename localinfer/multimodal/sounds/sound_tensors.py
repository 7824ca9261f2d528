"""The tensors of a sound encoder. A file may have an encoder of images, too: its tensors belong to that encoder."""

from dataclasses import replace

import numpy as np

from localinfer.gguf.dequantize import dequantize
from localinfer.gguf.reader import GGUF, Tensor
from localinfer.multimodal.encoder_graph.encoder_tensors import EncoderTensors, Floats, constant

PREFIXES = ("a.", "mm.a.")
LAYERS = "a.blk."
BATCH_NORM_EPSILON = 1e-5  # PyTorch's default


def sound_tensors(f: GGUF) -> list[str]:
    """Return the names of the tensors of the sound encoder of a file."""
    return [name for name in f.tensors if name.startswith(PREFIXES)]


class SoundTensors(EncoderTensors):
    """The tensors of the sound encoder of a file."""

    def __init__(self, f: GGUF, block_count: int, converted: dict[str, Tensor]) -> None:
        super().__init__(f, LAYERS, block_count, converted)

    def convolution(self, name: str, n_out: int, n_in: int, *taps: int) -> Tensor:
        """Return a convolution as a matrix (n_out, columns padded to a multiple of 32). A column is the value
        [input][tap] of the rows that the convolution reads."""
        weight = self.tensor(f"{name}.weight", n_out, n_in, *taps)

        def convert() -> Tensor:
            matrix = dequantize(weight).reshape(n_out, -1)
            return constant(weight.name, np.pad(matrix, ((0, 0), (0, -matrix.shape[1] % 32))))

        return self._once(f"{name} as a matrix", convert)

    def convolution_of_rows(self, name: str, n_out: int, n_in: int, *taps: int) -> Tensor:
        """Return a convolution as a matrix for gathered rows: a column is the value [tap][input]."""
        weight = self.tensor(f"{name}.weight", n_out, n_in, *taps)

        def convert() -> Tensor:
            values = dequantize(weight).reshape(n_out, n_in, -1)
            return constant(weight.name, values.transpose(0, 2, 1).reshape(n_out, -1))

        return self._once(f"{name} of rows", convert)

    def columns_by_row(self, name: str, n_out: int, n_in: int, count: int) -> Tensor:
        """Return a matrix whose columns are in the order [row][value], for `count` rows side by side of `n_in` values.
        In the file they are in the order [value][row]."""
        weight = self.tensor(f"{name}.weight", n_out, n_in * count)

        def convert() -> Tensor:
            values = dequantize(weight).reshape(n_out, n_in, count)
            return constant(weight.name, values.transpose(0, 2, 1).reshape(n_out, -1))

        return self._once(f"{name} by row", convert)

    def depthwise(
        self, name: str, n: int, *shape: int, norm: str = "", first: tuple[int, ...] = (),
        bias_first: tuple[int, ...] = (),
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Return the weights of a depthwise convolution over rows of n values, (taps, n), and its bias. In the file,
        they are (*first, n, *shape). `norm` names a normalization that follows, by column."""
        weight = self.tensor(f"{name}.weight", *first, n, *shape)
        offset = self.convolution_bias(name, n, len(shape) - 1, bias_first) if self.has(f"{name}.bias") else None
        factors, terms = self._normalization(norm, n) if norm else (np.float32(1), np.float32(0))

        def convert() -> Tensor:
            return constant(weight.name, dequantize(weight).reshape(n, -1).T * factors)

        def convert_bias() -> Tensor:
            values = np.zeros(n, np.float32) if offset is None else floats_of(offset)
            return constant(f"{name}.bias", values * factors + terms)

        taps = self._once(f"{name} by tap", convert)
        return taps, self._once(f"{name} bias", convert_bias) if offset or norm else None

    def _normalization(self, name: str, n: int) -> tuple[Floats, Floats]:
        """Return the factors and the terms of a batch normalization, by column. The file has them, or also the means
        and the variances."""
        factors, terms = (floats_of(self.vector(f"{name}.{kind}", n)) for kind in ("weight", "bias"))
        if not self.has(f"{name}_mean"):
            return factors, terms
        variances = self.positive_vector(f"{name}_var", n)
        factors = (factors / np.sqrt(variances + BATCH_NORM_EPSILON)).astype(np.float32)
        return factors, terms - floats_of(self.vector(f"{name}_mean", n)) * factors

    def convolution_bias(self, name: str, n_out: int, n_taps: int, first: tuple[int, ...] = ()) -> Tensor:
        """Return the bias of a convolution, whose shape in the file has a 1 for each dimension of the taps, and begins
        with `first`."""
        return replace(self.floats(f"{name}.bias", *first, n_out, *[1] * n_taps), shape=(n_out,))

    def positions(self, count: int, n: int) -> Floats:
        """Return the first `count` position embeddings, (count, n)."""
        name = "a.position_embd.weight"
        found = self.f.tensors.get(name)
        rows = found.shape[0] if found else count
        if rows < count:
            raise self.f.error(f"tensor {name}", f"has {rows} rows; {count} are needed")
        return self.values(name, rows, n)[:count]

    def reject_unused(self) -> None:
        """Raise UnsupportedError for a tensor of the sound encoder that the graph does not use."""
        others = set(self.f.tensors) - set(sound_tensors(self.f))
        if self.f.get("clip.has_vision_encoder", bool, False):
            self.accept(*others)
        super().reject_unused()


def floats_of(tensor: Tensor) -> Floats:
    """Return the values of a float32 tensor."""
    values: Floats = tensor.data.view(np.float32)
    return values
