"""The projector of a multimodal model: makes input rows of its language model of images, sounds and videos."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from math import isqrt
from operator import itemgetter

import numpy as np

from localinfer.errors import LocalInferError, UnsupportedError, UsageError
from localinfer.gguf.reader import GGUF
from localinfer.graph.recording.model_graph import HookedGraph
from localinfer.graph.recording.points import Point
from localinfer.machine import resources
from localinfer.multimodal.encoder_graph.compiled_encoder import CompiledEncoder, OnPoint
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats
from localinfer.multimodal.encoders.arrangement import Part, View
from localinfer.multimodal.media import Image, Sound, Video, digest_of
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW
from localinfer.multimodal.preprocessing.processors import ImageProcessor, make_image_processor
from localinfer.multimodal.projector_file import ProjectorFile, projector_points
from localinfer.multimodal.sounds.sound_input import SoundProcessor
from localinfer.multimodal.videos.video_info import VideoInfo
from localinfer.multimodal.videos.video_processor import VideoProcessor
from localinfer.options import Options
from localinfer.runtime.activations.hooks import SequenceHooks
from localinfer.runtime.media.media_embeddings import MediaEmbeddings
from quant.jit.loader import Progress

MAX_KEPT_BYTES = 256 << 20  # of rows of recent images, sounds and videos
NO_IMAGE = (0, 0)  # the size in pixels of a sound


class Projector:
    """The encoders of a model's images, sounds and videos. One thread at a time encodes; recent results are kept.

    Memory for a graph is allocated while something is encoded. `processor` and `sound_processor` replace
    those that the file's keys describe.
    """

    def __init__(
        self, file: ProjectorFile, options: Options, progress: Progress | None = None, *,
        processor: ImageProcessor | None = None, sound_processor: SoundProcessor | None = None,
    ) -> None:  # fmt: skip
        self._file, self._options, self._progress = in_memory_if_wanted(file, options, progress), options, progress
        self._processor = processor or (make_processor(file.f, options) if file.encoder else None)
        self._sound_processor = sound_processor or (file.sound.make_processor() if file.sound else None)
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, list[Part]] = OrderedDict()
        self._closed = False
        self._hooks: SequenceHooks | None = None  # of what is being encoded, by this thread
        self._encoding_thread = 0

    @property
    def kinds(self) -> frozenset[str]:
        """What it encodes: "image", "audio", "video"."""
        encoder = self._file.encoder
        encoders = {"image": encoder, "audio": self._file.sound, "video": encoder.video if encoder else None}
        return frozenset(kind for kind, found in encoders.items() if found)

    @property
    def sound_type(self) -> str:
        """The projector type of the encoder of sounds. Raises UnsupportedError if there is none."""
        return self._file.sound_encoder.projector_type

    def encode(self, media: Image | Sound | Video, hooks: SequenceHooks | None = None) -> list[Part]:
        """Return the rows that take the place of an image, a sound or a video in the prompt, and the text around them.

        The same image is not encoded twice while its rows are kept. With `hooks` at points of the encoder, it is
        encoded, and its rows are not kept. Raises UnsupportedError for what the projector does not encode,
        NotEnoughMemoryError, LocalInferError if the file has changed, and the errors of hooks.
        """
        if self._encoding_thread == threading.get_ident():
            raise UsageError("a hook cannot evaluate the model that it belongs to")
        with self._lock:
            if self._closed:
                raise LocalInferError("the projector is closed")
            if hooks and hooks.encoder_points:
                return self._encode_with_hooks(media, hooks)
            if media.digest not in self._kept:
                self._kept[media.digest] = self._parts(media)
                while len(self._kept) > 1 and sum(map(size_of, self._kept.values())) > MAX_KEPT_BYTES:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(media.digest)
            return list(self._kept[media.digest])

    def _encode_with_hooks(self, media: Image | Sound | Video, hooks: SequenceHooks) -> list[Part]:
        self._hooks, self._encoding_thread = hooks, threading.get_ident()
        try:
            return self._parts(media)
        finally:
            self._hooks, self._encoding_thread = None, 0

    def points(self) -> Mapping[str, Point]:
        """Return the points of the encoders by name (`localinfer.graph.points`): of graphs that cannot run."""
        return projector_points(self._file, self._options)

    def layout(self, media: Image | Sound | Video) -> list[str | int]:
        """Return what `encode` returns, without encoding: the number of rows in place of the rows."""
        if isinstance(media, Video):
            parts = self._video_layout(media)
            return [part if isinstance(part, str) else len(part) for part in parts]
        if isinstance(media, Sound):
            encoder = self._file.sound_encoder
            count_rows = cache(lambda n_frames: encoder.build(n_frames, self._options)[1].rows.capacity)
            counts = [(OVERVIEW, count_rows(n_frames)) for _, n_frames in self._windows(media)]
            arrange = encoder.family.arrange
        else:
            count_rows = cache(lambda grid: self._file.build(grid, self._options)[1].rows.capacity)
            counts = [(each.name, count_rows(each.grid)) for each in self._image_processor(media)]
            arrange = self._file.image_encoder.arrange
        size = media.pixels.shape[:2] if isinstance(media, Image) else NO_IMAGE
        views = [
            View(name, MediaEmbeddings(b"", np.empty((count, 0), np.float32), count), size) for name, count in counts
        ]
        return [part if isinstance(part, str) else len(part) for part in arrange(views)]

    @property
    def video_processor(self) -> VideoProcessor:
        """The processor of videos. Raises UnsupportedError if the encoder was not trained for them."""
        family = self._file.image_encoder.video
        if family is None:
            what = f"{self._file.projector_type} was not trained for videos; send single frames as images"
            raise self._file.f.error("clip.projector_type", what, UnsupportedError)
        return VideoProcessor(family, self._image_processor.parameters, self._options)

    def choose_frames(self, info: VideoInfo, max_tokens: int) -> list[int]:
        """Return the numbers of the frames of a video to encode. Unless the user sets their number, they are so few
        that they have at most `max_tokens` rows; one encoder input is the least."""
        processor = self.video_processor
        most = processor.most
        while True:
            numbers = processor.frames(info, most)
            n_rows = processor.n_inputs(len(numbers)) * self._count_rows(processor, info, len(numbers))
            fewest = processor.family.frames
            if n_rows <= max_tokens or len(numbers) <= fewest or self._options.video_max_frames:
                return numbers
            most = max(fewest, min(len(numbers) - 1, len(numbers) * max_tokens // n_rows))

    def close(self) -> None:
        """Discard the kept rows; later calls raise LocalInferError. An image of another thread is encoded first."""
        with self._lock:
            self._closed = True
            self._kept.clear()

    @property
    def _hooked_graph(self) -> HookedGraph | None:
        """What distinguishes the graph of an encoder with hooks."""
        return HookedGraph(self._hooks.encoder_points) if self._hooks else None

    @property
    def _on_point(self) -> OnPoint | None:
        return self._hooks.call_encoder_hooks if self._hooks else None

    @property
    def _image_processor(self) -> ImageProcessor:
        """The processor of images. Raises UnsupportedError if the file encodes none."""
        assert self._file.image_encoder
        assert self._processor
        return self._processor

    def _windows(self, sound: Sound) -> list[tuple[int, int]]:
        """Return the first frame and the number of frames of what is encoded at once. Raises UnsupportedError if the
        file encodes no sounds."""
        framing = self._file.sound_encoder.framing
        assert self._sound_processor
        return framing.windows(self._sound_processor.n_frames(len(sound.samples)))

    def _parts(self, media: Image | Sound | Video) -> list[Part]:
        if isinstance(media, Image):
            return self._image_parts(media)
        return self._video_parts(media) if isinstance(media, Video) else self._sound_parts(media)

    def _image_parts(self, image: Image) -> list[Part]:
        """Return the rows of an image and the text around them. Adjacent inputs of the same size share a graph."""
        views, f, inputs, size = [], self._file.f, self._image_processor(image), image.pixels.shape[:2]
        for grid, group in groupby(inputs, key=lambda each: each.grid):
            graph = self._file.build(grid, self._options, hooks=self._hooked_graph)
            with CompiledEncoder(*graph, self._progress) as encoder:
                for each in group:
                    f.check_unchanged()
                    rows = encoder.run(each.patches, on_point=self._on_point)
                    views.append(View(each.name, self._embeddings(rows, grid), size))
        return self._file.image_encoder.arrange(views)

    def _sound_parts(self, sound: Sound) -> list[Part]:
        """Return the rows of a sound and the text around them. Adjacent windows of the same length share a graph."""
        views, f, encoder = [], self._file.f, self._file.sound_encoder
        windows = self._windows(sound)
        assert self._sound_processor
        features = self._sound_processor(sound).features
        for n_frames, group in groupby(windows, key=itemgetter(1)):
            graph = encoder.build(n_frames, self._options, self._hooked_graph)
            with CompiledEncoder(*graph, self._progress) as compiled:
                for first, _ in group:
                    f.check_unchanged()
                    seen = features[first : first + encoder.framing.window]
                    prepared = encoder.family.prepare(seen, encoder.framing.lengths(n_frames))
                    rows = compiled.run(prepared, on_point=self._on_point)
                    views.append(View(OVERVIEW, MediaEmbeddings(digest_of(rows), rows, len(rows)), NO_IMAGE))
        return encoder.family.arrange(views)

    def _video_parts(self, video: Video) -> list[Part]:
        """Return the rows of a video and the text around them."""
        processor, f, rows = self.video_processor, self._file.f, []
        inputs = processor(video)
        graph = self._file.build(inputs[0].grid, self._options, processor.family.frames, self._hooked_graph)
        with CompiledEncoder(*graph, self._progress) as encoder:
            for number, each in enumerate(inputs, 1):
                f.check_unchanged()
                rows.append(self._embeddings(encoder.run(each.patches, on_point=self._on_point), each.grid))
                if self._progress:
                    self._progress("video", number, len(inputs))
        return processor.family.arrange(video, rows)

    def _video_layout(self, video: Video) -> list[Part]:
        """Return what `_video_parts` returns, with rows of no values."""
        processor, n = self.video_processor, len(video.frames)
        grid = processor.grid(video.frames.shape[1], video.frames.shape[2], n)
        count = self._file.build(grid, self._options, processor.family.frames)[1].rows.capacity
        each = self._embeddings(np.empty((count, 0), np.float32), grid)
        return processor.family.arrange(video, [each] * processor.n_inputs(n))

    def _count_rows(self, processor: VideoProcessor, info: VideoInfo, n: int) -> int:
        """Return the number of rows of an encoder input of a video of which `n` frames are encoded."""
        grid = processor.grid(info.height, info.width, n)
        return self._file.build(grid, self._options, processor.family.frames)[1].rows.capacity

    def _embeddings(self, rows: Floats, grid: tuple[int, int]) -> MediaEmbeddings:
        """Return the output rows of an image, or of frames, with their positions."""
        encoder = self._file.image_encoder
        digest, coordinates, n_positions = digest_of(rows), None, len(rows)
        if encoder.grid_positions:
            merge = isqrt(grid[0] * grid[1] // len(rows))
            height, width = grid[0] // merge, grid[1] // merge
            vertical, horizontal = np.divmod(np.arange(len(rows), dtype=np.int32), np.int32(width))
            coordinates = np.stack([np.zeros_like(vertical), vertical, horizontal], 1)
            n_positions = max(height, width)
        elif encoder.coordinates:
            coordinates = encoder.coordinates(grid, len(rows))
            n_positions = int(coordinates.max()) + 1 if coordinates.shape[1] == 3 else len(rows)
        if coordinates is not None:
            digest = digest_of(np.frombuffer(digest + digest_of(coordinates), np.uint8))
        return MediaEmbeddings(digest, rows, n_positions, coordinates, self._file.bidirectional)


def size_of(parts: Sequence[Part]) -> int:
    """Return the bytes of the rows among these parts."""
    return sum(part.rows.nbytes for part in parts if isinstance(part, MediaEmbeddings))


def in_memory_if_wanted(file: ProjectorFile, options: Options, progress: Progress | None) -> ProjectorFile:
    """Return the projector file mapped as it is, or read into memory if `options.mmap` is off. Raises
    NotEnoughMemoryError."""
    if options.mmap or file.f.in_memory:
        return file
    from localinfer.gguf.in_memory import read_into_memory

    f = read_into_memory(file.f, options.threads or resources.default_threads(), progress)
    return replace(file, f=f, sound=replace(file.sound, f=f) if file.sound else None)


def make_processor(f: GGUF, options: Options) -> ImageProcessor:
    """Return the image processor that the keys of a projector file describe."""
    return make_image_processor(f, options.image_min_tokens, options.image_max_tokens)
