"""Snapshots: what an engine remembers, in a file that it can go on from instead of computing it again.

    save(path, engine, options)
    load(path, engine, options)     # the number of tokens that it remembers now

The layout, little-endian:

    magic "LISNAPSH", version u32, length of the header u32
    header: JSON; `identity`: whose it is, `tokens`: how many, `sizes`: the bytes of each part of each memory
    tokens: int32 each, then the parts, as `Memory.save` gives them
    blake2b of all before: 32 bytes

A snapshot holds what was said, so that it is readable for its owner alone. It tells its own damage, and whom it is of;
but whoever can write it can have a model see another past than the one that its tokens tell.
"""

import json
import struct
from hashlib import blake2b
from itertools import chain, pairwise
from pathlib import Path

import numpy as np

from localinfer.engine.engine import Engine
from localinfer.errors import UsageError
from localinfer.files.gguf import GGUF
from localinfer.files.mapped import MappedFile
from localinfer.files.safe_file import appearing
from localinfer.options import Options
from localinfer.plan.memory.memory import Bytes
from localinfer.version import VERSION

MAGIC = b"LISNAPSH"
FORMAT = 2
LEAD = struct.Struct("<8sII")  # magic, version, length of the header
DIGEST_BYTES = 32
SAMPLE_BYTES = 64  # of each tensor's data: models that were trained further have the same header

Saved = list[list[Bytes]]  # parts, by memory
Identity = dict[str, object]

FOREIGN = {  # field of the identity: what is to be said when it differs
    "localinfer": "was written by another version",
    "model": "is of another model",
    "architecture": "is of another --architecture",
    "context": "is of another context: size, policy or cache types",
    "batch": "is of another --ubatch-size",
    "passes": "is of another --precision",
}


def identity(engine: Engine, options: Options) -> Identity:
    """All that decides what is remembered of tokens, and how it lies in memory."""
    context, plan = engine.program.recorder.context, engine.plan
    own = Path(options.architecture).read_bytes() if options.architecture else b""
    return {
        "localinfer": VERSION,
        "model": [what for f in engine.program.files for what in (f.size, model_digest(f))],
        "architecture": blake2b(own, digest_size=DIGEST_BYTES).hexdigest(),
        "context": [context.n_ctx, context.sinks, context.wraps, context.k_type, context.v_type, context.ahead],
        "batch": plan.batch,
        "passes": plan.passes,
    }


def model_digest(f: GGUF) -> str:
    """Of the metadata, the table of tensors, and the first bytes of each tensor: quick, however large the model is."""
    digest = blake2b(f.files[0].bytes[: f.data_offset].data, digest_size=DIGEST_BYTES)
    for tensor in f.tensors.values():
        digest.update(repr((tensor.name, tensor.shape, tensor.type, tensor.part, tensor.offset)).encode())
        digest.update(tensor.data[:SAMPLE_BYTES].data)
    return digest.hexdigest()


def save(path: Path, engine: Engine, options: Options) -> None:
    """Write what is remembered, in the place of what is there. LocalInferError for what cannot be written."""
    with engine.lock:
        tokens = np.array(engine.sequence.tokens, "<i4")
        saved = [[part.reshape(-1).data for part in parts] for parts in engine.sequence.save()]
    header = json.dumps({
        "identity": identity(engine, options),
        "tokens": len(tokens),
        "sizes": [[part.nbytes for part in parts] for parts in saved],
    }).encode()  # fmt: skip
    pieces: list[bytes | memoryview] = [LEAD.pack(MAGIC, FORMAT, len(header)), header, tokens.tobytes()]
    pieces += chain.from_iterable(saved)
    digest, offset = blake2b(digest_size=DIGEST_BYTES), 0
    with appearing({path: sum(map(len, pieces)) + DIGEST_BYTES}, replace=True, mode=0o600) as [file]:
        for piece in pieces:
            digest.update(piece)
            file.write_at(offset, piece)
            offset += len(piece)
        file.write_at(offset, digest.digest())


def load(path: Path, engine: Engine, options: Options) -> int:
    """Remember what a snapshot holds, and nothing else; how many tokens that is.

    LocalInferError for one that is damaged, or of another model or other options, UsageError for any other file: then
    nothing is remembered.
    """
    with engine.lock:
        engine.require_open()
        engine.reset()
        file = MappedFile(path)
        try:
            engine.sequence.load(*contents(file, identity(engine, options)))
        except (ValueError, KeyError, TypeError, RecursionError):  # its digest is right, and what it says is not
            engine.reset()
            raise file.error("", "damaged") from None
        return engine.n_past


def contents(file: MappedFile, expected: Identity) -> tuple[list[int], Saved]:
    """The tokens, and the parts as views of the file. Beside LocalInferError raises what damaged JSON leads to."""
    body, digest = file.bytes[:-DIGEST_BYTES], file.bytes[-DIGEST_BYTES:]
    if len(body) < LEAD.size or body[: len(MAGIC)].tobytes() != MAGIC:
        raise file.error("", "is there, and is no snapshot of a cache", UsageError)
    _, version, header_size = LEAD.unpack_from(body.data)
    if version != FORMAT:
        raise file.error("", FOREIGN["localinfer"])
    if blake2b(body.data, digest_size=DIGEST_BYTES).digest() != digest.tobytes():
        raise file.error("", "damaged")
    header = json.loads(body[LEAD.size : LEAD.size + header_size].tobytes())
    for field, problem in FOREIGN.items():
        if header["identity"][field] != expected[field]:
            raise file.error("", problem)
    tokens_end = LEAD.size + header_size + 4 * header["tokens"]
    tokens = body[LEAD.size + header_size : tokens_end].view("<i4").tolist()
    return tokens, cut(body[tokens_end:], header["sizes"])


def cut(data: Bytes, sizes: list[list[int]]) -> Saved:
    """The data as parts of these sizes; ValueError unless these are all of it."""
    ends = np.cumsum([0, *chain.from_iterable(sizes)]).tolist()
    if ends[-1] != len(data) or ends != sorted(ends):
        raise ValueError("sizes do not add up")
    parts = iter([data[start:end] for start, end in pairwise(ends)])
    return [[next(parts) for _ in memory] for memory in sizes]
