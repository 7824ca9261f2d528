"""Digests of the tensors of a model, as llama-gguf-hash computes them. Metadata do not count.

A manifest has a line for each tensor and one for all of them: `sha256    DIGEST  FILE:TENSOR`.
"""

import hashlib
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from localinfer.gguf.source import Source

NAMESPACE = uuid.UUID("ef001206-dadc-5f6d-a15f-3359e577d4e5")  # llama.cpp's, for UUIDs of tensor data
ALGORITHMS = ("xxh64", "sha1", "sha256")  # the weakest first
UUID = "uuid"
BLOCK = 64 << 20  # bytes that are hashed at once
LINE = re.compile(rf"({'|'.join((*ALGORITHMS, UUID))}) +([0-9a-f-]+)  (.+)")
Progress = Callable[[int, int], None]  # bytes that are hashed, bytes in all


class Hash(Protocol):
    """A digest that is being computed."""

    def update(self, data: memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass(frozen=True)
class Digest:
    """A digest of the tensor `name`, or of all tensors if it is empty."""

    algorithm: str
    value: str
    name: str

    def line(self, file: str) -> str:
        """Return the line of a manifest."""
        return f"{self.algorithm:8}  {self.value}  {file}{':' if self.name else ''}{self.name}"


class UuidHash:
    """A UUID of version 5: that of the SHA-1 of a namespace and the data."""

    def __init__(self) -> None:
        self._sha1 = hashlib.sha1(NAMESPACE.bytes, usedforsecurity=False)

    def update(self, data: memoryview, /) -> None:
        self._sha1.update(data)

    def hexdigest(self) -> str:
        return str(uuid.UUID(bytes=self._sha1.digest()[:16], version=5))


def new_hash(algorithm: str) -> Hash:
    """Return a digest without data."""
    if algorithm == UUID:
        return UuidHash()
    if algorithm == "xxh64":
        import xxhash

        return xxhash.xxh64()
    return hashlib.sha1(usedforsecurity=False) if algorithm == "sha1" else hashlib.sha256()


def hash_tensors(
    source: Source, algorithms: Sequence[str], *, each: bool = True, progress: Progress | None = None
) -> Iterator[Digest]:
    """Yield the digests of each tensor, unless `each` is false, and then those of all tensors together."""
    model, done = {algorithm: new_hash(algorithm) for algorithm in algorithms}, 0
    total = sum(tensor.nbytes for tensor in source.tensors.values())
    for tensor in source.tensors.values():
        own = {algorithm: new_hash(algorithm) for algorithm in algorithms if each and algorithm != UUID}
        data = tensor.load()
        for begin in range(0, len(data), BLOCK):
            block = data[begin : begin + BLOCK].data
            for digest in (*model.values(), *own.values()):
                digest.update(block)
            done += len(block)
            if progress:
                progress(done, total)
        yield from (Digest(algorithm, digest.hexdigest(), tensor.name) for algorithm, digest in own.items())
    yield from (Digest(algorithm, digest.hexdigest(), "") for algorithm, digest in model.items())


def read_manifest(text: str) -> list[Digest]:
    """Return the digests of a manifest, whatever its file is called. Lines that are none are ignored."""
    digests = []
    for line in text.splitlines():
        if match := LINE.fullmatch(line.rstrip()):
            _, _, name = match[3].partition(":")
            digests.append(Digest(match[1], match[2], name))
    return digests
