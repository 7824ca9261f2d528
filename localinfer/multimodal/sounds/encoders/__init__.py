"""Sound encoders: one file for each projector type of llama.cpp's projector files, named after it, with "." replaced by
"_". It has

    SoundProcessor               makes the spectrogram of a sound, given the number of bands and a `LogEnergies`
    prepare(features, lengths)   returns the input rows of the graph, for parts with these numbers of frames
    build(g)                     computes the output rows with the operations of a `SoundBuilder`
    arrange(views)               returns the rows of a sound with text around them
    FRAMING                      how many frames are encoded, and which of them the convolutions see together
    ARCHITECTURES                the language models that it belongs to (GGUF architectures); any if it is empty
    HAS_LAYERS                   whether it has layers (True if missing)

`whisper`, `conformer` and `gemma_conformer` have the layers that several types share.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoders.arrangement import Arrange
from localinfer.multimodal.sounds.framing import Floats, Framing
from localinfer.multimodal.sounds.sound_builder import SoundBuilder
from localinfer.multimodal.sounds.sound_input import SoundProcessor
from localinfer.multimodal.sounds.spectrum import LogEnergies

HELPERS = ("conformer", "gemma_conformer", "whisper")


class SoundFamily(NamedTuple):
    """What the file of a projector type defines."""

    make_processor: Callable[[int, LogEnergies], SoundProcessor]
    prepare: Callable[[Floats, list[int]], Floats]
    build: Callable[[SoundBuilder], Buffer]
    arrange: Arrange
    framing: Framing
    architectures: tuple[str, ...]
    has_layers: bool


def known() -> list[str]:
    """Return the names of all modules of projector types."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if path.stem not in HELPERS)


def find_family(projector_type: str) -> SoundFamily | None:
    """Return what a projector type does with sounds, or None if it is not supported."""
    name = projector_type.replace(".", "_")
    if name not in known():
        return None
    module = import_module(f"localinfer.multimodal.sounds.encoders.{name}")
    functions = module.SoundProcessor, module.prepare, module.build, module.arrange
    return SoundFamily(*functions, module.FRAMING, module.ARCHITECTURES, getattr(module, "HAS_LAYERS", True))
