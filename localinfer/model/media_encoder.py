"""Images, sounds and videos of prompts as token ids: decoded, encoded by the projector, and given to the engine."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from localinfer.errors import LocalInferError, PromptTooLongError, UnsupportedInputError, UsageError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF
from localinfer.hub.projectors import NOUNS, kinds_text, media_kinds
from localinfer.multimodal.access import ANY_FILE, MediaAccess
from localinfer.multimodal.media import SAMPLE_RATE, Image, Sound, Video
from localinfer.multimodal.parts import (
    KINDS,
    Content,
    Media,
    decode,
    is_media_part,
    kind_of,
    part_content,
    source_content,
)
from localinfer.options import Options
from localinfer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from localinfer.multimodal.projector import Projector
    from localinfer.runtime.activations.hooks import SequenceHooks
    from localinfer.runtime.media.media_embeddings import MediaEmbeddings

MAX_DECODED_BYTES = 256 << 20  # of decoded images, sounds and videos that are kept for the next request
MAX_COUNTS = 1000  # images, sounds and videos whose numbers of tokens are kept
MAX_FIELD = 100  # characters of the name of a field
MAX_MEDIA = 1000  # of a conversation, of which the oldest turns may be left out
MAX_SHARE = 2  # of the context that a video takes, unless the user sets its number of frames: a half
TOO_LONG = "use fewer or smaller images, fewer frames of videos, or a larger ctx_size (--ctx-size)"

Message = Mapping[str, object]
MediaIds = Callable[["MediaEmbeddings"], list[int]]
Progress = Callable[[str, int, int], None]


class NamedMedia(NamedTuple):
    """An image or a sound of a prompt, and the field by which errors name it."""

    field: str
    kind: str  # "" if only the content tells it
    content: Content


class MediaInfo(NamedTuple):
    """The size of an image in pixels, that of a sound in seconds, or both and the number of encoded frames of a video,
    and the number of its tokens in a prompt."""

    kind: str
    n_tokens: int
    width: int = 0
    height: int = 0
    seconds: float = 0.0
    n_frames: int = 0

    def __str__(self) -> str:
        frames = f"{self.n_frames} frame{'s' if self.n_frames != 1 else ''}"
        sizes = {
            "image": f"{self.width} x {self.height}", "audio": f"{self.seconds:.1f} s",
            "video": f"{self.seconds:.1f} s, {frames} of {self.width} x {self.height}",
        }  # fmt: skip
        return f"{sizes[self.kind]}, {self.n_tokens:,} tokens"


class MediaEncoder:
    """The projector of a model, which is opened at first use, and the media that were decoded last.

    Threads may call the methods.
    """

    def __init__(
        self, f: GGUF, name: str | Path, projector: Path | None, options: Options, tokenizer: Tokenizer,
        progress: Progress | None = None, n_ctx: int = 0,
    ) -> None:  # fmt: skip
        """`name` is that by which the model was loaded. A video takes a part of `n_ctx` tokens, 0 for no limit."""
        self._file, self._name, self._options, self._tokenizer = f, name, options, tokenizer
        self._path, self._progress, self._n_ctx = projector, progress, n_ctx
        self._projector: Projector | None = None
        self._decoded: OrderedDict[bytes, Media] = OrderedDict()  # by digest of kind and content, latest last
        self._counts: OrderedDict[bytes, int] = OrderedDict()  # of tokens, by digest, latest last
        self._lock = Lock()

    @property
    def kinds(self) -> frozenset[str]:
        """What the model reads beside text: "image", "audio", "video". Does not load the projector."""
        return media_kinds(self._path)

    def projector(self) -> "Projector":
        """Return the projector. Raises UnsupportedInputError if the model has none."""
        with self._lock:
            if self._projector is None:
                from localinfer.multimodal.projector import Projector
                from localinfer.multimodal.projector_file import open_projector

                if self._path is None:
                    raise UnsupportedInputError(self._missing_projector())
                self._projector = Projector(open_projector(self._path, self._file), self._options, self._progress)
            return self._projector

    def close(self) -> None:
        """Close the projector."""
        with self._lock:
            if self._projector is not None:
                self._projector.close()
                self._projector = None

    # --- messages ---

    def encode_messages(
        self, messages: Sequence[Message], access: MediaAccess, media_ids: MediaIds | None, n_ctx: int = 0,
        hooks: "SequenceHooks | None" = None,
    ) -> Sequence[Message]:  # fmt: skip
        """Return the messages with the token ids of their images and sounds: {"type": "image", "ids": [...]}.

        Without `media_ids`, as many zeros as there would be ids: nothing is encoded. `hooks` are called at the points
        of the encoders. Raises UsageError that names an
        invalid field, UnsupportedInputError if the model cannot read a part, PromptTooLongError for more than `n_ctx`
        tokens.
        """
        parts = list(iter_media_parts(messages))
        if not parts:
            return messages
        require_few([where for where, _ in parts])
        found = [NamedMedia(where, KINDS[part["type"]], part_content(part, where, access)) for where, part in parts]
        ids = dict(zip((id(part) for _, part in parts), self.ids(found, media_ids, n_ctx, hooks), strict=True))

        def replaced(part: object) -> object:
            return {"type": KINDS[part["type"]], "ids": ids[id(part)]} if id(part) in ids else part  # type: ignore[index]

        return [
            {**each, "content": [replaced(part) for part in content]}
            if isinstance(content := each.get("content"), list | tuple)
            else each
            for each in messages
        ]

    # --- texts ---

    def encode_sources(
        self, sources: Sequence[object], access: MediaAccess, media_ids: MediaIds, n_ctx: int,
        hooks: "SequenceHooks | None" = None,
    ) -> list[list[int]]:  # fmt: skip
        """Return the token ids of images, sounds and videos: paths, bytes, data: URLs, decoded media, or parts of
        messages. `hooks` are called at the points of the encoders."""
        fields = [f"media[{index}]" for index in range(len(sources))]
        require_few(fields)
        found = [named_media(source, field, access) for field, source in zip(fields, sources, strict=True)]
        return self.ids(found, media_ids, n_ctx, hooks)

    # --- token ids ---

    def ids(
        self, found: Sequence[NamedMedia], media_ids: MediaIds | None, n_ctx: int = 0,
        hooks: "SequenceHooks | None" = None,
    ) -> list[list[int]]:  # fmt: skip
        """Return the token ids of each image or sound; zeros without `media_ids`."""
        for each in found:
            self._require(each.kind, each.field)
        projector, counts = self.projector(), list[int]()
        for each in found:  # one at a time: a decoded image may take a thousand times as much memory as its file
            counts.append(self._count(projector, self._decode(each)))
            if media_ids and n_ctx and sum(counts) > n_ctx:
                raise PromptTooLongError(sum(counts), n_ctx, TOO_LONG)
        if media_ids is None:
            return [[0] * count for count in counts]
        if hooks:
            hooks.begin_media()
        return [self._encode(projector, self._decode(each), media_ids, hooks) for each in found]

    def info(self, source: object, field: str) -> "MediaInfo":
        """Return the size and the tokens of an image, a sound or a video: see `Model.media_info`."""
        media = self._decode(named_media(source, field, ANY_FILE))
        n_tokens = self._count(self.projector(), media)
        if isinstance(media, Image):
            height, width = media.pixels.shape[:2]
            return MediaInfo("image", n_tokens, width=width, height=height)
        if isinstance(media, Sound):
            return MediaInfo("audio", n_tokens, seconds=len(media.samples) / SAMPLE_RATE)
        n_frames, height, width = media.frames.shape[:3]
        return MediaInfo("video", n_tokens, width, height, media.duration, n_frames)

    def _count(self, projector: "Projector", media: Media) -> int:
        """Return the number of tokens of an image or a sound, those of the text around it included."""
        with self._lock:
            known = self._counts.pop(media.digest, None)
        if known is None:  # without the lock, for which other requests would wait
            parts = projector.layout(media)
            known = sum(len(self._tokens(part)) if isinstance(part, str) else part for part in parts)
        with self._lock:
            self._counts[media.digest] = known
            if len(self._counts) > MAX_COUNTS:
                self._counts.popitem(last=False)
        return known

    def _tokens(self, text: str) -> list[int]:
        """Return the token ids of the text around an image or a sound."""
        return self._tokenizer.encode(text, add_special=False, parse_special=True, continues_text=True)

    def _encode(
        self, projector: "Projector", media: Media, media_ids: MediaIds, hooks: "SequenceHooks | None"
    ) -> list[int]:
        ids: list[int] = []
        for piece in projector.encode(media, hooks):
            if isinstance(piece, str):
                ids += self._tokens(piece)
            else:
                ids += media_ids(piece)
        return ids

    def _decode(self, media: NamedMedia) -> Media:
        """Decode media that the model can read. Raises UnsupportedInputError for others."""
        self._require(media.kind, media.field)
        if not isinstance(media.content, bytes):
            self._require(kind_of(media.content), media.field)
            return media.content
        key = blake2b(media.kind.encode() + media.content, digest_size=16).digest()
        with self._lock:
            known = self._decoded.pop(key, None)
        if known is None:  # without the lock, for which other requests would wait
            known = decode(media.content, media.kind, media.field, self._read_video)
        with self._lock:
            self._decoded[key] = known
            while sum(map(size_of, self._decoded.values())) > MAX_DECODED_BYTES and len(self._decoded) > 1:
                self._decoded.popitem(last=False)
        self._require(kind_of(known), media.field)
        return known

    def _read_video(self, content: bytes, name: str) -> Video:
        """Return the frames of a video that the projector encodes, in the size that it reads."""
        from localinfer.multimodal.reading import read_video

        self._require("video", name)
        projector, max_tokens = self.projector(), (self._n_ctx or 1 << 31) // MAX_SHARE
        report = partial(self._progress, "frames") if self._progress else None
        return read_video(
            content, name, lambda info: projector.choose_frames(info, max_tokens), projector.video_processor.fit, report
        )

    def _require(self, kind: str, field: str) -> None:
        """Raise UnsupportedError unless the projector encodes this kind of media, or any if it is ""."""
        kinds = self.kinds
        if not kinds:
            try:
                self.projector()  # an unsupported one is refused by name
            except LocalInferError as error:
                raise UnsupportedInputError(f"{field}: {error}") from None
        if kind and kind not in kinds:
            what = "was not trained for videos" if kind == "video" and "image" in kinds else f"no {NOUNS[kind]}"
            raise UnsupportedInputError(f"{field}: the model reads {kinds_text(kinds)}, and {what}")

    def _missing_projector(self) -> str:
        if not self._options.mmproj and not self._options.mmproj_auto:
            return "the model reads text only, because of --no-mmproj"
        name = str(self._name)
        is_of_hub = name.startswith("hf:")
        hint = f"`localinfer pull {name}` downloads it if there is one" if is_of_hub else "--mmproj names one"
        return f"{self._file.path.name} reads text only: there is no projector (mmproj) beside it; {hint}"


def named_media(source: object, field: str, access: MediaAccess) -> NamedMedia:
    """Return the image, sound or video that a Python object or a part of a message is or names."""
    if isinstance(source, Mapping) and is_media_part(source):
        return NamedMedia(field, KINDS[str(source["type"])], part_content(source, field, access))
    return NamedMedia(field, "", source_content(source, field, "", access))


def require_few(fields: Sequence[str]) -> None:
    """Raise UsageError for too many images and sounds, before one is read."""
    if len(fields) > MAX_MEDIA:
        raise UsageError(f"{fields[MAX_MEDIA]}: more than {MAX_MEDIA} images, sounds and videos")


def iter_media_parts(messages: object) -> "list[tuple[str, Mapping[str, str]]]":
    """Return the parts of messages that are images or sounds, with their fields. Invalid messages have none."""
    found = []
    for number, message in enumerate(messages if isinstance(messages, list | tuple) else ()):
        content = message.get("content") if isinstance(message, Mapping) else None
        for index, part in enumerate(content if isinstance(content, list | tuple) else ()):
            if is_media_part(part):
                field = part.get("field")
                where = field if isinstance(field, str) else f"messages[{number}].content[{index}]"
                found.append((printable(where, MAX_FIELD), part))
    return found


def size_of(media: Media) -> int:
    if isinstance(media, Video):
        return media.frames.nbytes
    return (media.pixels if isinstance(media, Image) else media.samples).nbytes
