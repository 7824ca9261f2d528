"""Images, sounds and videos that are attached to the next message of a chat."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cli.files.media_input import MediaFile, media_info
from localinfer.errors import LocalInferError
from localinfer.session_media import digest_of, new_part, path_of

if TYPE_CHECKING:
    from cli.chat.prompt_window import Message
    from localinfer import Model


class Attachment(NamedTuple):
    """A part of the next message, and the content of its file."""

    part: dict[str, object]
    content: bytes

    @property
    def digest(self) -> str:
        return digest_of(self.part)


def attach(file: MediaFile, model: "Model") -> tuple[Attachment, str]:
    """Return the attachment for a file, and a line that tells its size and its tokens.

    Raises UnsupportedError if the model cannot read it, UsageError if it is damaged.
    """
    info = media_info(file, model)
    return Attachment(new_part(info.kind, file.content, file.path.name), file.content), f"{file.path.name}: {info}"


def attachments_of(message: "Message", contents: dict[str, bytes]) -> list[Attachment]:
    """Return the images and sounds of an earlier message, as far as their contents are known."""
    content = message["content"]
    found = []
    for part in content if isinstance(content, list) else ():
        digest = digest_of(part)
        data = contents.get(digest) if digest in contents else read_stored(path_of(digest)) if digest else None
        if data:
            found.append(Attachment(part, data))
    return found


def read_stored(path: Path) -> bytes | None:
    from localinfer.multimodal.access import MAX_VIDEO_BYTES, read_bytes

    try:
        return read_bytes(path, "session", MAX_VIDEO_BYTES)
    except LocalInferError:
        return None
