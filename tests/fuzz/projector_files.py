"""Fuzzing of projector files: mutants of each type are opened, checked and encode an image, a video or a sound.

Guard pages are around every tensor and every region of the compute graph.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np
import projectors
import sound_projectors
from fuzz.files import Target
from fuzz.mutable_gguf import MutableGGUF
from fuzz.mutations import mutate
from fuzz.target import AVAILABLE_MEMORY, allocate_guarded, guard_tensors, require_loaded
from guard_pages import is_intact
from made_images import photograph
from made_sounds import chirp

from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.graph.ops.buffers import Region
from localinfer.machine import resources
from localinfer.multimodal import projector_file
from localinfer.multimodal.media import Image, Sound, Video
from localinfer.multimodal.projector import Projector
from localinfer.options import Options
from quant.jit import loader

MAX_PATCHES = 1 << 12  # instead of the real limit: a valid encoder of large images takes longer than a mutant may
OPTIONS = Options(threads=1)
SIZES = (30, 41), (64, 64), (200, 90)


class Source(NamedTuple):
    """A valid projector file and its language model."""

    name: str
    file: MutableGGUF
    model: GGUF


class ProjectorFile(Target):
    """A mutant that needs other kernels than the valid files is opened and checked; --kernels compiles some of them."""

    def make(self) -> Sequence[bytes]:
        self.regions: list[Region] = []
        Region.allocate = lambda region: self.allocate(region)  # type: ignore[method-assign,assignment]
        self.sources = [self.write_source(name) for name in (*projectors.NAMES, *sound_projectors.NAMES)]
        for source in self.sources:
            self.encode(source, source.file.to_bytes(), Random(0))  # loads the kernels
        return []

    def allocate(self, region: Region) -> None:
        """Replacement for `Region.allocate`."""
        allocate_guarded(region)
        self.regions.append(region)

    def write_source(self, name: str) -> Source:
        folder = self.folder / name
        folder.mkdir()
        if name in projectors.NAMES:
            model = projectors.language_model(projectors.reference(name), folder)
            return Source(name, MutableGGUF.read(projectors.write(name, folder)), open_gguf(model))
        model = sound_projectors.language_model(name, folder)
        return Source(name, MutableGGUF.read(sound_projectors.write(name, folder)), open_gguf(model))

    def mutate(self, choose: Random) -> bytes:
        self.source = choose.choice(self.sources)
        return mutate(self.source.file.copy(), choose)

    def run(self, content: bytes, choose: Random) -> None:
        loader.load_cached = require_loaded  # type: ignore[assignment]
        resources.available_memory = lambda: AVAILABLE_MEMORY
        self.regions.clear()
        projector_file.MAX_PATCHES = MAX_PATCHES
        self.encode(self.source, content, choose)

    def encode(self, source: Source, content: bytes, choose: Random) -> None:
        """Open a file and encode an image, a video and a sound, as far as the file has encoders of them."""
        file = projector_file.open_projector(self.write("mmproj.gguf", content), source.model)
        guard_tensors(file.f)
        projector = Projector(file, OPTIONS)
        rng = np.random.default_rng(choose.getrandbits(32))
        frames = np.stack([photograph(40, 56, rng) for _ in range(3)])
        media = {
            "image": Image(photograph(*choose.choice(SIZES), rng)), "audio": Sound(chirp()),
            "video": Video(frames, (0.0, 0.5, 1.0), 1.5),
        }  # fmt: skip
        for kind in sorted(projector.kinds):
            parts = projector.encode(media[kind])
            assert [each if isinstance(each, str) else len(each) for each in parts] == projector.layout(media[kind])
            assert all(is_intact(region.array) for region in self.regions if region.array is not None)
        projector.close()
