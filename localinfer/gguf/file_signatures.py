"""Recognize the type of a file that is not GGUF, for the error message.

Only the first bytes are inspected; nothing is parsed further. A directory is recognized by its config.json.
"""

from pathlib import Path

from localinfer.escaping import shell_word

# First bytes of a file -> description.
SIGNATURES = {
    b"version https://git-lfs.github.com/spec/": "a Git LFS pointer, not the model: run `git lfs pull`",
    b"PK\x03\x04": "a ZIP archive (a PyTorch checkpoint is one)",
    b"\x80\x02": "a Python pickle, which is never loaded",
    b"\x80\x04": "a Python pickle, which is never loaded",
    b"lmgg": "an old GGML file: convert the model to GGUF",
    b"fmgg": "an old GGML (ggmf) file: convert the model to GGUF",
    b"tjgg": "an old GGML (ggjt) file: convert the model to GGUF",
    b"algg": "an old GGML (ggla) adapter: convert it to GGUF",
    b"\x1f\x8b": "a gzip archive: unpack it first",
    b"\x28\xb5\x2f\xfd": "a zstd archive: unpack it first",
    b"\xfd7zXZ\x00": "an xz archive: unpack it first",
    b"BZh": "a bzip2 archive: unpack it first",
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive: unpack it first",
    b"%PDF": "a PDF document",
    b"\x7fELF": "an executable",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF": "an HDF5 file",
}
WEB_PAGES = (b"<!doctype", b"<html", b"<?xml", b"<error")
HEAD_BYTES = 64  # number of first bytes that are inspected


def describe_file(head: bytes) -> str:
    """Return a description of a file with these first bytes, or "" if unknown."""
    for signature, kind in SIGNATURES.items():
        if head.startswith(signature):
            return kind
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(WEB_PAGES):
        return "a web page, perhaps the error page of a download"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 27:
        return "a safetensors file: `localinfer quantize` makes a GGUF file of the directory that it is in"
    if head.lstrip()[:1] in (b"{", b"["):
        return "a JSON text"
    if not head.strip(b"\0"):
        return "nothing but zero bytes, perhaps a download that was not finished"
    return ""


def describe_directory(path: Path) -> str:
    """Return a description of a directory that was given as a model, or "" if unknown."""
    if not (path / "config.json").is_file():
        return ""
    command = f"`localinfer quantize {shell_word(str(path))} OUT.gguf Q8_0`"
    return f"a checkpoint; {command} converts it, or reports why it cannot"
