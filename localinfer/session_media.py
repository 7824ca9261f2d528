"""Images, sounds and videos of chat sessions: each is stored once, under its hash, in the folder `media` beside the
sessions.

    {"type": "image", "sha256": HASH, "name": "cat.jpg"}      a part of a message in the session
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from localinfer import paths
from localinfer.errors import LocalInferError

HASH = re.compile(r"[0-9a-f]{64}")
KINDS = ("image", "audio", "video")

Message = Mapping[str, object]


def new_part(kind: str, content: bytes, name: str) -> dict[str, object]:
    """Return the part of a message for an image ("image"), a sound ("audio") or a video ("video")."""
    return {"type": kind, "sha256": sha256(content).hexdigest(), "name": name}


def digest_of(part: object) -> str:
    """Return the hash of an image or a sound; "" for other parts. Session files are untrusted."""
    if not isinstance(part, Mapping) or part.get("type") not in KINDS:
        return ""
    digest = part.get("sha256")
    return digest if isinstance(digest, str) and HASH.fullmatch(digest) else ""


def digests(messages: Iterable[Message]) -> Iterator[str]:
    """Yield the hashes of the images and sounds of messages."""
    for message in messages:
        content = message.get("content")
        yield from filter(None, map(digest_of, content if isinstance(content, list) else ()))


def content_text(content: object) -> str:
    """Return the text of a message's content, with the names of its images and sounds in brackets."""
    if isinstance(content, list):
        return "\n".join(map(part_text, content))
    return str(content or "")


def plain_text(content: object) -> str:
    """Return the text of a message's content without its images and sounds."""
    if isinstance(content, list):
        return "\n".join(part_text(part) for part in content if not digest_of(part))
    return str(content or "")


def part_text(part: object) -> str:
    if isinstance(part, Mapping) and isinstance(text := part.get("text"), str):
        return text
    if isinstance(part, Mapping) and part.get("type") in KINDS:
        return f"[{part['type']}: {part.get('name', '?')}]"
    return str(part)


def for_model(messages: Iterable[Message], contents: Mapping[str, bytes]) -> list[Message]:
    """Return the messages as `Model.chat` takes them: with the contents of their images and sounds, or else the stored
    files.
    """

    def changed(part: object) -> object:
        if not isinstance(part, Mapping) or not (digest := digest_of(part)):
            return {"type": "text", "text": part_text(part)} if isinstance(part, Mapping) else part
        return {"type": part["type"], str(part["type"]): contents.get(digest) or path_of(digest)}

    return [
        {**message, "content": [changed(part) for part in content]}
        if isinstance(content := message.get("content"), list)
        else message
        for message in messages
    ]


# --- files ---


def path_of(digest: str) -> Path:
    """Return the path of a stored image or sound."""
    return paths.sessions_dir() / "media" / digest


def store(messages: Iterable[Message], contents: Mapping[str, bytes]) -> None:
    """Write the images and sounds of messages that are not stored yet. Raises LocalInferError."""
    for digest in digests(messages):
        path = path_of(digest)
        try:
            if digest in contents and not path.exists():
                paths.private_directory(paths.sessions_dir())
                paths.private_directory(path.parent)
                paths.replace_file(path, contents[digest])
        except OSError as error:
            raise LocalInferError(f"{path}: cannot be written: {error.strerror}") from None


def remove_unused(candidates: Iterable[str], used: Iterable[str]) -> None:
    """Remove stored images and sounds that nothing uses. Raises OSError."""
    for digest in set(candidates) - set(used):
        path_of(digest).unlink(missing_ok=True)
