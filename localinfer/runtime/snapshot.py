"""Snapshots: an engine's KV cache and recurrent states in a file, so that a prompt need not be evaluated again.

    save(path, engine, options)
    load(path, engine, options)     # returns the number of restored tokens

The layout, little-endian:

    magic "LISNAPSH", version u32, length of the header u32
    header: JSON; `identity`: model and options, `tokens`: their number, `sizes`: the bytes of each array of each cache;
        with images or sounds, `media`: the fields of their `MediaSpan`, the digest in hexadecimal digits
    tokens: int32 each, then the arrays, as `SequenceCache.save` returns them; token -1 - k is row k of all `media`
    blake2b of everything before: 32 bytes

A snapshot contains the conversation, so only the owner can read the file. The digest detects damage, and the
identity detects another model; but anyone who can write the file can replace the keys and values by those of
other tokens.
"""

import json
import struct
from hashlib import blake2b
from itertools import accumulate, chain, pairwise
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from localinfer.errors import UsageError
from localinfer.gguf.atomic_file import atomic_files
from localinfer.gguf.mapped_file import MappedFile
from localinfer.gguf.reader import GGUF
from localinfer.graph.cache.sequence_cache import Bytes
from localinfer.options import Options
from localinfer.runtime.encoder_tokens import encoder_length
from localinfer.runtime.media.media_table import MAX_POSITIONS, MediaSpan, MediaTable
from localinfer.runtime.media.sequence_media import SequenceMedia
from localinfer.runtime.sequence import Sequence
from localinfer.runtime.sequence_engine import SequenceEngine
from localinfer.version import VERSION

MAGIC = b"LISNAPSH"
FORMAT = 2
PREAMBLE = struct.Struct("<8sII")  # magic, version, length of the header
DIGEST_BYTES = 32
SAMPLE_BYTES = 64  # of each tensor's data: fine-tuned models have equal headers

CacheArrays = list[list[Bytes]]  # the saved arrays of each cache
Identity = dict[str, object]

MISMATCH_MESSAGES = {  # field of the identity: the error message when it differs
    "localinfer": "was written by a different version",
    "metadata": "was written with other metadata of the model (override_kv, or the options of RoPE and YaRN)",
    "model": "belongs to another model",
    "architecture": "was written with another architecture file (--architecture)",
    "context": "was written with another context: size, policy or cache types",
    "batch": "was written with another ubatch_size (--ubatch-size)",
    "passes": "was written with another precision (--precision)",
    "adapters": "was written with other adapters, or other scales of them",
}


def snapshot_identity(engine: SequenceEngine, options: Options) -> Identity:
    """Return everything that determines the contents and the memory layout of the cache."""
    context, graph = engine.context, engine.graph
    architecture = Path(options.architecture).read_bytes() if options.architecture else b""
    adapters = engine.compiled_graph.model_graph.adapters
    overrides = [[key, value] for f in engine.compiled_graph.files for key, value in sorted(f.overrides.items())]
    return {
        "localinfer": VERSION,
        "model": [item for f in engine.compiled_graph.files for item in (f.size, model_digest(f))],
        "architecture": blake2b(architecture, digest_size=DIGEST_BYTES).hexdigest(),
        "context": [
            context.n_ctx,
            context.sinks,
            context.context_shift,
            context.k_type,
            context.v_type,
            context.draft_head,
        ],
        "batch": graph.batch,
        "passes": graph.passes,
        **({"metadata": overrides} if overrides else {}),
        **({"adapters": [adapters.digest, *engine.sequence.modifiers.scales]} if adapters else {}),
    }


def model_digest(f: GGUF) -> str:
    """Return a digest of the metadata with its overrides, of the tensor table and of the first bytes of each tensor. It
    is fast for any model size."""
    digest = blake2b(f.files[0].bytes[: f.data_offset].data, digest_size=DIGEST_BYTES)
    if f.overrides:
        digest.update(repr(sorted(f.overrides.items())).encode())
    for tensor in f.tensors.values():
        digest.update(repr((tensor.name, tensor.shape, tensor.type, tensor.split_index, tensor.offset)).encode())
        digest.update(tensor.data[:SAMPLE_BYTES].data)
    return digest.hexdigest()


def save(path: Path, engine: SequenceEngine, options: Options) -> None:
    """Write a snapshot, replacing an existing file. Raises LocalInferError if it cannot be written."""
    with engine.lock:
        ids, media = without_table(engine.sequence)
        tokens = np.array(ids, "<i4")
        saved = [[array.reshape(-1).data for array in arrays] for arrays in engine.sequence.save()]
    header = json.dumps({
        "identity": snapshot_identity(engine, options),
        "tokens": len(tokens),
        "sizes": [[array.nbytes for array in arrays] for arrays in saved],
        **({"media": media} if media else {}),
    }).encode()  # fmt: skip
    pieces: list[bytes | memoryview] = [PREAMBLE.pack(MAGIC, FORMAT, len(header)), header, tokens.tobytes()]
    pieces += chain.from_iterable(saved)
    digest, offset = blake2b(digest_size=DIGEST_BYTES), 0
    with atomic_files({path: sum(map(len, pieces)) + DIGEST_BYTES}, replace=True, mode=0o600) as [file]:
        for piece in pieces:
            digest.update(piece)
            file.write_at(offset, piece)
            offset += len(piece)
        file.write_at(offset, digest.digest())


def load(path: Path, engine: SequenceEngine, options: Options) -> int:
    """Replace the default sequence with a snapshot and return its number of tokens.

    Raises LocalInferError for a snapshot that is damaged or belongs to another model or other options, UsageError for
    any other file; the sequence is then empty.
    """
    with engine.lock:
        engine.runner.require_open()
        engine.use_adapters(engine.runner.default_scales)
        engine.reset()
        file = MappedFile(path)
        try:
            tokens, arrays, media = read_contents(file, snapshot_identity(engine, options))
            if media and engine.runner.media_table is None:
                raise file.error("", "has images or sounds, and the model is loaded without a projector for them")
            load_sequence(engine, tokens, arrays, media)
        except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
            # The digest is right, but the contents are not.
            engine.reset()
            raise file.error("", "damaged") from None
        return engine.n_past


def read_contents(file: MappedFile, expected: Identity) -> tuple[list[int], CacheArrays, list[dict[str, Any]]]:
    """Return the tokens, the arrays as views of the file, and the media.

    Raises LocalInferError, UsageError, and the errors of accessing malformed JSON.
    """
    body, digest = file.bytes[:-DIGEST_BYTES], file.bytes[-DIGEST_BYTES:]
    if len(body) < PREAMBLE.size or body[: len(MAGIC)].tobytes() != MAGIC:
        raise file.error("", "exists but is not a snapshot", UsageError)
    _, version, header_size = PREAMBLE.unpack_from(body.data)
    if version != FORMAT:
        raise file.error("", MISMATCH_MESSAGES["localinfer"])
    if blake2b(body.data, digest_size=DIGEST_BYTES).digest() != digest.tobytes():
        raise file.error("", "damaged")
    header = json.loads(body[PREAMBLE.size : PREAMBLE.size + header_size].tobytes())
    identity = dict(header["identity"])
    for field, problem in MISMATCH_MESSAGES.items():
        if identity.get(field) != expected.get(field):
            raise file.error("", problem)
    tokens_end = PREAMBLE.size + header_size + 4 * header["tokens"]
    tokens = body[PREAMBLE.size + header_size : tokens_end].view("<i4").tolist()
    return tokens, split_arrays(body[tokens_end:], header["sizes"]), header.get("media", [])


# --- media rows, whose ids belong to the table of a loaded model ---


def without_table(sequence: Sequence) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the tokens of a sequence with media ids that count the rows of its own media, and these media."""
    spans = dict.fromkeys(placed.span for placed in sequence.media.spans)
    firsts = dict(zip(spans, accumulate((span.count for span in spans), initial=0), strict=False))
    tokens = list(sequence.tokens)
    for placed in sequence.media.spans:
        end, first = min(placed.end, len(tokens)), firsts[placed.span]
        tokens[placed.start : end] = range(-1 - first, -1 - first - (end - placed.start), -1)
    return tokens, [
        {"digest": span.digest.hex(), "count": span.count, "n_positions": span.n_positions,
         "bidirectional": span.bidirectional}
        for span in spans
    ]  # fmt: skip


def spans_of_file(media: list[dict[str, Any]], engine: SequenceEngine, n_tokens: int) -> list[MediaSpan]:
    """Return the spans of a snapshot, which count the rows from 0 on.

    Raises ValueError and TypeError for invalid contents, such as more rows than `n_tokens` can have: of each span but
    the last one all rows are there.
    """
    spans, first, n_ctx = list[MediaSpan](), 0, engine.n_ctx
    for each in media:
        count, n_positions = index(each["count"]), index(each["n_positions"])
        if not 1 <= count <= n_ctx or not 1 <= n_positions <= MAX_POSITIONS or first + count > n_tokens + n_ctx:
            raise ValueError("media with no rows, or too many")
        spans.append(MediaSpan(first, count, bytes.fromhex(each["digest"]), n_positions, bool(each["bidirectional"])))
        first += count
    if len({span.digest for span in spans}) < len(spans):
        raise ValueError("media that are listed twice")
    return spans


def with_table(table: MediaTable, spans: list[MediaSpan], tokens: list[int], n_batch: int) -> list[int]:
    """Return the tokens of a snapshot with the ids of these spans in a table. Raises ValueError for invalid tokens."""
    ids = [id for span in spans for id in span.ids]
    if min(tokens, default=0) < -len(ids):
        raise ValueError("media rows without media")
    tokens = [ids[-1 - id] if id < 0 else id for id in tokens]
    try:
        SequenceMedia(table).check_appended(tokens, 0, n_batch)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return tokens


def load_sequence(engine: SequenceEngine, tokens: list[int], arrays: CacheArrays, media: list[dict[str, Any]]) -> None:
    """Restore the sequence of an engine. Raises the errors of invalid contents; the table of the engine's media rows is
    then as before."""
    table, spans = engine.runner.media_table, spans_of_file(media, engine, len(tokens))
    if table is None:
        first = encoder_length(tokens) if engine.context.encoder_decoder else 0
        if min(tokens[first:], default=0) < 0 or min(tokens, default=0) < -engine.n_vocab:
            raise ValueError("media rows without media")
        engine.sequence.load(tokens, arrays)
        return
    try:
        with table.reserved(spans) as here:
            engine.sequence.load(with_table(table, here, tokens, engine.graph.batch), arrays)
    except UsageError as error:
        raise ValueError(str(error)) from None


def split_arrays(data: Bytes, sizes: list[list[int]]) -> CacheArrays:
    """Split the data into arrays of these sizes. Raises ValueError unless they add up to all of it."""
    ends = np.cumsum([0, *chain.from_iterable(sizes)]).tolist()
    if ends[-1] != len(data) or ends != sorted(ends):
        raise ValueError("sizes do not add up")
    arrays = iter([data[start:end] for start, end in pairwise(ends)])
    return [[next(arrays) for _ in cache_sizes] for cache_sizes in sizes]
