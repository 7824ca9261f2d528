"""The projector of a multimodal model: makes input rows of its language model of images."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from itertools import groupby
from math import isqrt
from typing import Protocol

import numpy as np

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.gguf.reader import GGUF
from localinfer.machine import resources
from localinfer.multimodal.encoder_graph.compiled_encoder import CompiledEncoder
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats
from localinfer.multimodal.encoders.arrangement import Part, View
from localinfer.multimodal.media import Image, Sound, digest_of
from localinfer.multimodal.preprocessing.encoder_input import EncoderInput
from localinfer.multimodal.projector_file import ProjectorFile
from localinfer.options import Options
from localinfer.runtime.media_embeddings import MediaEmbeddings
from quant.jit.loader import Progress

MAX_KEPT_BYTES = 256 << 20  # of rows of recent images
PROCESSORS = "localinfer.multimodal.preprocessing.processors"


class ImageProcessor(Protocol):
    """Makes encoder inputs of an image."""

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return the encoder inputs of an image."""


class Projector:
    """The encoder of a model's images. One thread at a time encodes; the results of recent images are kept.

    Memory for a graph is allocated while an image is encoded. `processor` replaces the one that the file's keys
    describe.
    """

    def __init__(
        self, file: ProjectorFile, options: Options, progress: Progress | None = None, *,
        processor: ImageProcessor | None = None,
    ) -> None:  # fmt: skip
        self._file, self._options, self._progress = in_memory_if_wanted(file, options, progress), options, progress
        self._processor = processor or make_processor(file.f, options)
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, list[Part]] = OrderedDict()
        self._closed = False

    @property
    def kinds(self) -> frozenset[str]:
        """What it encodes: "image", "audio"."""
        return frozenset({"image"})

    def encode(self, media: Image | Sound) -> list[Part]:
        """Return the rows that take the place of an image in the prompt, and the text around them.

        The same image is not encoded twice while its rows are kept. Raises UnsupportedError for sounds,
        NotEnoughMemoryError, and LocalInferError if the file has changed.
        """
        image = require_image(media, self._file)
        with self._lock:
            if self._closed:
                raise LocalInferError("the projector is closed")
            if image.digest not in self._kept:
                self._kept[image.digest] = self._file.encoder.arrange(self._views(self._processor(image)))
                while len(self._kept) > 1 and sum(map(size_of, self._kept.values())) > MAX_KEPT_BYTES:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(image.digest)
            return list(self._kept[image.digest])

    def count_tokens(self, media: Image | Sound) -> int:
        """Return the number of rows that `encode` makes, without encoding. The text around them is not counted."""
        image = require_image(media, self._file)
        grids = self._processor.grids(*image.pixels.shape[:2])
        counts = {grid: self._file.build(grid, self._options)[1].rows.capacity for grid in set(grids)}
        return sum(counts[grid] for grid in grids)

    def layout(self, media: Image | Sound) -> list[str | int]:
        """Return what `encode` returns, without encoding: the number of rows in place of the rows."""
        image = require_image(media, self._file)
        views = []
        for each in self._processor(image):
            count = self._file.build(each.grid, self._options)[1].rows.capacity
            views.append(View(each.name, MediaEmbeddings(b"", np.empty((count, 0), np.float32), count)))
        parts = self._file.encoder.arrange(views)
        return [part if isinstance(part, str) else len(part) for part in parts]

    def close(self) -> None:
        """Discard the kept rows; later calls raise LocalInferError. An image of another thread is encoded first."""
        with self._lock:
            self._closed = True
            self._kept.clear()

    def _views(self, inputs: Sequence[EncoderInput]) -> list[View]:
        """Return the rows of each input. Adjacent inputs of the same size share a graph."""
        views, f = [], self._file.f
        for grid, group in groupby(inputs, key=lambda each: each.grid):
            with CompiledEncoder(*self._file.build(grid, self._options), self._progress) as encoder:
                for each in group:
                    f.check_unchanged()
                    views.append(View(each.name, self._embeddings(encoder.run(each.patches), grid)))
        return views

    def _embeddings(self, rows: Floats, grid: tuple[int, int]) -> MediaEmbeddings:
        """Return output rows with their positions."""
        encoder = self._file.encoder
        digest, coordinates, n_positions = digest_of(rows), None, len(rows)
        if encoder.grid_positions:
            merge = isqrt(grid[0] * grid[1] // len(rows))
            height, width = grid[0] // merge, grid[1] // merge
            vertical, horizontal = np.divmod(np.arange(len(rows), dtype=np.int32), np.int32(width))
            coordinates = np.stack([np.zeros_like(vertical), vertical, horizontal], 1)
            n_positions = max(height, width)
            digest = digest_of(np.frombuffer(digest + digest_of(coordinates), np.uint8))
        return MediaEmbeddings(digest, rows, n_positions, coordinates, encoder.bidirectional)


def require_image(media: Image | Sound, file: ProjectorFile) -> Image:
    """Return an image. Raises UnsupportedError for a sound."""
    if isinstance(media, Sound):
        raise file.f.error("clip.projector_type", f"{file.projector_type} does not encode sounds", UnsupportedError)
    return media


def size_of(parts: Sequence[Part]) -> int:
    """Return the bytes of the rows among these parts."""
    return sum(part.rows.nbytes for part in parts if isinstance(part, MediaEmbeddings))


def in_memory_if_wanted(file: ProjectorFile, options: Options, progress: Progress | None) -> ProjectorFile:
    """Return the projector file mapped as it is, or read into memory if `options.mmap` is off. Raises
    NotEnoughMemoryError."""
    if options.mmap or file.f.in_memory:
        return file
    from localinfer.gguf.in_memory import read_into_memory

    return replace(file, f=read_into_memory(file.f, options.threads or resources.default_threads(), progress))


def make_processor(f: GGUF, options: Options) -> ImageProcessor:
    """Return the image processor that the keys of a projector file describe."""
    limits = (getattr(options, f"image_{end}_tokens", 0) for end in ("min", "max"))
    processor: ImageProcessor = import_module(PROCESSORS).make_image_processor(f, *limits)
    return processor
