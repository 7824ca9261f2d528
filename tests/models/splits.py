"""Models in several files, as llama.cpp's gguf-split lays them out; written with the `gguf` package's reader alone."""

import struct
from pathlib import Path

import gguf

ALIGNMENT = 32  # of every part: the model's own is said in the first one alone


def split(path: Path, per_file: int, *, bare_first: bool = False) -> list[Path]:
    """Write the model's tensors into files of `per_file` beside it. The first one may have metadata alone."""
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
        paths[-1].write_bytes(part(keys, group))
    return paths


def raw(field: gguf.ReaderField) -> bytes:
    """A key and its value as they lie in the file."""
    return b"".join(piece.tobytes() for piece in field.parts)


def key(name: str, kind: gguf.GGUFValueType, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def part(keys: list[bytes], tensors: list[gguf.ReaderTensor]) -> bytes:
    """One file."""
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
