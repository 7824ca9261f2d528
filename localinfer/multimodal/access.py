"""Which files and addresses a message may name as an image, a sound or a video, and their content.

Content within the message itself is always allowed. Programs and the command line read any file (`ANY_FILE`);
messages of clients name none unless the server allows it.
"""

import base64
import binascii
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from localinfer.errors import UsageError
from localinfer.escaping import printable

MAX_BYTES = 64 << 20  # of a file, before it is decoded
MAX_VIDEO_BYTES = 1 << 30
DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w.+-]+=[\w.+-]+)*;base64,", re.IGNORECASE | re.ASCII)
FILE_URL = "file://"
WEB_SCHEMES = ("http", "https")
DOWNLOAD_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class MediaAccess:
    """What messages may name: any file, files of a `folder`, and addresses of the web."""

    any_file: bool = False
    folder: Path | None = None
    urls: bool = False

    def read_url(self, url: str, field: str, max_bytes: int = MAX_BYTES) -> bytes:
        """Return what a URL contains or names. Raises UsageError that begins with `field`."""
        if url[:5].lower() == "data:":
            return decode_data_url(url, field)
        if url.startswith(FILE_URL):
            return self.read_file(unquote(url.removeprefix(FILE_URL)), field, max_bytes)
        if urlsplit_scheme(url) in WEB_SCHEMES:
            if not self.urls:
                raise UsageError(f"{field}: addresses of the web are not fetched here; send the content as a data: URL")
            return download(url, field, max_bytes)
        raise UsageError(f"{field}: must be a data: URL, such as data:image/png;base64,...")

    def read_file(self, path: str, field: str, max_bytes: int = MAX_BYTES) -> bytes:
        """Return the content of a file. Raises UsageError that begins with `field`."""
        if self.folder is None and not self.any_file:
            raise UsageError(f"{field}: files are not read here; send the content as a data: URL")
        folder = None if self.any_file or self.folder is None else self.folder.resolve()
        try:
            file = (folder / path).resolve() if folder else Path(path).expanduser()
        except (OSError, ValueError, RuntimeError) as error:  # a NUL, a loop of links, a user who does not exist
            raise UsageError(f"{field}: {printable(path, 200)}: {error}") from None
        if folder and not file.is_relative_to(folder):
            raise UsageError(f"{field}: {printable(path, 200)} is not in the folder of media files")
        return read_bytes(file, field, max_bytes)


INLINE_ONLY = MediaAccess()
ANY_FILE = MediaAccess(any_file=True)


def urlsplit_scheme(url: str) -> str:
    try:
        return urlsplit(url[:4096]).scheme
    except ValueError:
        return ""


def decode_data_url(url: str, field: str) -> bytes:
    """Return the content of a data: URL."""
    match = DATA_URL.match(url)
    if not match:
        raise UsageError(f"{field}: must be base64, such as data:image/png;base64,...")
    return decode_base64(url[match.end() :], field)


def decode_base64(text: str, field: str) -> bytes:
    """Decode base64, with or without padding and line breaks. Raises UsageError that begins with `field`."""
    if len(text) > MAX_BYTES * 4 // 3 + 4:
        raise UsageError(f"{field}: larger than {MAX_BYTES >> 20} MiB")
    try:
        compact = "".join(text.split()).rstrip("=")
        content = base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (ValueError, binascii.Error):
        raise UsageError(f"{field}: is not valid base64") from None
    if not content:
        raise UsageError(f"{field}: is empty")
    return content


def read_bytes(path: Path, field: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file of at most `max_bytes`."""
    name = printable(str(path), 200)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would block
            raise UsageError(f"{field}: {name}: not a regular file")
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{field}: {name}: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > max_bytes:
        raise UsageError(f"{field}: {name}: larger than {max_bytes >> 20} MiB")
    return content


def download(url: str, field: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Return what a web server sends, at most `max_bytes`, within DOWNLOAD_SECONDS."""
    import time

    import httpx2  # few programs fetch media

    deadline = time.monotonic() + DOWNLOAD_SECONDS
    content = bytearray()
    try:
        with httpx2.stream("GET", url, timeout=DOWNLOAD_SECONDS, follow_redirects=True) as response:
            response.raise_for_status()
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > max_bytes:
                    raise UsageError(f"{field}: larger than {max_bytes >> 20} MiB")
                if time.monotonic() > deadline:
                    raise UsageError(f"{field}: took longer than {DOWNLOAD_SECONDS:.0f} s")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise UsageError(f"{field}: {printable(str(error) or type(error).__name__, 200)}") from None
    return bytes(content)
