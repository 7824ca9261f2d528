"""The builder of sound encoders. A graph is built for a number of frames of a spectrogram; its rows stand for moments.

A convolution over time is a product of a matrix and rows that consist of the neighbouring input rows.
"""

from collections.abc import Sequence

import numpy as np

from localinfer.graph.ops.buffers import Buffer, Rows
from localinfer.graph.properties.attention import AttentionHeads
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.multimodal.encoder_graph import row_order
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder, PatchInput
from localinfer.multimodal.encoder_graph.encoder_model import require_memory
from localinfer.multimodal.encoder_graph.row_order import Indices
from localinfer.multimodal.encoder_graph.zero_rows import with_zero_rows
from localinfer.multimodal.sounds.framing import Framing
from localinfer.multimodal.sounds.sound_tensors import LAYERS, SoundTensors, floats_of

ACTIVATION = "gelu_erf"
MAX_BANDS = 1 << 10


class SoundBuilder(EncoderBuilder):
    """Records the operations of an encoder for `n_frames` frames."""

    tensors: SoundTensors
    layer_prefix = LAYERS

    def __init__(self, model: ModelGraph, framing: Framing, n_frames: int, heads: AttentionHeads) -> None:
        super().__init__(model, (model.graph.batch, 1), heads)
        self.framing, self.n_frames, self.lengths = framing, n_frames, framing.lengths(n_frames)

    @property
    def input_size(self) -> str:
        return f"a sound of {self.n_frames / self.framing.rate:g} s"

    @property
    def n_bands(self) -> int:
        """The number of values of a frame: the bands of the mel spectrogram."""
        return self.hparams.count("num_mel_bins", maximum=MAX_BANDS)

    @property
    def stack_size(self) -> int:
        """The number of rows that become one."""
        return self.hparams.count("projector.stack_factor", maximum=64)

    def rows(self, count: int) -> Rows:
        return self.graph.tokens if count == self.graph.batch else super().rows(count)

    def project(self, name: str, n_out: int, n_in: int) -> Buffer:
        """Return a matrix times the frames: the residual stream."""
        weight, bias = self.tensors.convolution(name, n_out, n_in), self.tensors.bias(name, n_out)
        inputs, x = self.graph.buffer(weight.shape[1]), self.graph.buffer(n_out)
        initial = np.zeros((self.graph.batch, n_out), np.float32)
        if bias is not None:
            initial += floats_of(bias)
        self.input = PatchInput(inputs, 0, np.arange(self.n_frames, dtype=np.int32), x, initial)
        self.begin_stream(x, inputs, weight, name)
        return x

    def enter(
        self, name: str, n_out: int, n_in: int, taps: Sequence[int], n_rows: int, act: str = ACTIVATION,
        bias_first: tuple[int, ...] = (),
    ) -> Buffer:  # fmt: skip
        """Return the activations of the first convolution, for `n_rows` rows that the host prepares, and a row of zeros
        behind them."""
        weight = self.tensors.convolution(name, n_out, n_in, *taps)
        rows = self.rows(n_rows + 1)
        inputs, x = self.graph.buffer(weight.shape[1], rows), self.graph.buffer(n_out, rows)
        require_memory(self.f, self.input_size, 2 * 4 * rows.capacity * n_out)
        initial = np.zeros((rows.capacity, n_out), np.float32)
        initial[:n_rows] = floats_of(self.tensors.convolution_bias(name, n_out, len(taps), bias_first))
        self.input = PatchInput(inputs, 0, np.arange(n_rows, dtype=np.int32), x, initial)
        self.begin_stream(x, inputs, weight, name, self.rows(n_rows))
        return self.gate(x, None, act)

    def convolve(self, x: Buffer, name: str, n_out: int, taps: Sequence[int], neighbours: Indices) -> Buffer:
        """Return the activations of a convolution that reads the rows `neighbours[i]` of x for row i."""
        weight = self.tensors.convolution_of_rows(name, n_out, x.n, *taps)
        bias = self.tensors.convolution_bias(name, n_out, len(taps))
        return self.gate(self.product(self.gather(x, neighbours), weight, bias=bias), None, ACTIVATION)

    def stack(self, x: Buffer, size: int) -> Buffer:
        """Return each `size` consecutive rows side by side. The last ones are completed by zeros."""
        count = x.rows.capacity
        groups = row_order.consecutive((-(-count // size), size))
        if count % size == 0:
            return self.gather(x, groups)
        return self.gather(with_zero_rows(self, x), np.minimum(groups, count))

    def average_pairs(self, x: Buffer, lengths: Sequence[int]) -> Buffer:
        """Return the means of pairs of consecutive rows. Parts with these numbers of rows lose an odd last row."""
        firsts = np.cumsum(lengths) - np.asarray(lengths)
        pairs = [first + row_order.consecutive((length // 2, 2)) for first, length in zip(firsts, lengths, strict=True)]
        return self.average(x, np.concatenate(pairs).astype(np.int32))
