"""Checks of what numpy computes for encoders, before kernels run: spectrograms, and learned positions for a grid of
another size."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from localinfer.evaluation.verification.operation_check import OperationCheck, compare, tolerance
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.media import Sound
from localinfer.multimodal.sounds.raw_frames import RawFrames
from localinfer.multimodal.sounds.sound_input import SoundProcessor
from localinfer.multimodal.sounds.spectrum import LogEnergies
from localinfer.naive.encoders import spectrogram
from localinfer.naive.encoders.interpolation import interpolated
from localinfer.naive.formulas import Floats


def single_energies(*arguments: Any, **keywords: Any) -> Floats:
    """Return the naive energies of bands, rounded to 32-bit floats."""
    return spectrogram.log_energies(*arguments, **keywords).astype(np.float32)


def spectrogram_checks(
    make_processor: Callable[[LogEnergies], SoundProcessor], features: Floats, sound: Sound
) -> Iterator[OperationCheck]:
    """Yield the check of the spectrogram of a sound, `features`, unless it is the samples themselves."""
    processors = make_processor(spectrogram.log_energies), make_processor(single_energies)
    if isinstance(processors[0], RawFrames):
        return
    exact, single = (process(sound).features.astype(np.float64) for process in processors)
    label = "spectrogram", "spectrogram", ""
    yield compare(label, exact, features, tolerance(exact, single, exact))


def interpolation_checks(g: EncoderBuilder) -> Iterator[OperationCheck]:
    """Yield the checks of the position embeddings that were resampled for a graph."""
    for each in g.resampled:
        exact, single = (
            interpolated(
                each.table.astype(dtype), each.grid, each.kind, align_corners=each.align_corners,
                antialias=each.antialias, zeros_beyond=each.zeros_beyond,
            )
            for dtype in (np.float64, np.float32)
        )  # fmt: skip
        label = "positions", "interpolation", ""
        yield compare(label, exact, each.rows.reshape(exact.shape), tolerance(exact, single, exact))
