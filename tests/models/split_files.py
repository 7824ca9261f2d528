"""Split models as written by llama.cpp's gguf-split, using only the `gguf` package's reader."""

import struct
from pathlib import Path

import gguf

ALIGNMENT = 32  # of all parts; only the first one has the model's general.alignment


def split(path: Path, per_file: int, *, bare_first: bool = False) -> list[Path]:
    """Split a model into files of `per_file` tensors next to it, and return their paths. With `bare_first`, the first
    file has only metadata.
    """
    reader = gguf.GGUFReader(path)
    tensors = reader.tensors
    groups = [tensors[start : start + per_file] for start in range(0, len(tensors), per_file)]
    if bare_first:
        groups = [[], *groups]
    metadata = [raw(field) for field in reader.fields.values() if not field.name.startswith("GGUF.")]
    paths = []
    for number, group in enumerate(groups):
        keys = [*metadata] if number == 0 else []
        keys.append(key("split.no", gguf.GGUFValueType.UINT16, struct.pack("<H", number)))
        keys.append(key("split.count", gguf.GGUFValueType.UINT16, struct.pack("<H", len(groups))))
        keys.append(key("split.tensors.count", gguf.GGUFValueType.INT32, struct.pack("<i", len(tensors))))
        paths.append(path.with_name(f"{path.stem}-{number + 1:05d}-of-{len(groups):05d}.gguf"))
        paths[-1].write_bytes(split_file_bytes(keys, group))
    return paths


def raw(field: gguf.ReaderField) -> bytes:
    """Return the bytes of a key and its value in the file."""
    return b"".join(piece.tobytes() for piece in field.parts)


def key(name: str, kind: gguf.GGUFValueType, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def split_file_bytes(keys: list[bytes], tensors: list[gguf.ReaderTensor]) -> bytes:
    """Return the bytes of one file."""
    table, data = b"", b""
    for tensor in tensors:
        dims = [int(dim) for dim in tensor.shape]
        table += struct.pack("<Q", len(tensor.name)) + tensor.name.encode()
        table += struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, tensor.tensor_type, len(data))
        data += padded(tensor.data.tobytes())
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys))
    return padded(header + b"".join(keys) + table) + data


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % ALIGNMENT)
