"""Fuzzing of snapshots and draft heads: files that are read into the memory of a running engine.

Every child process loads an engine for each model, because threads do not survive a fork. Guard pages are around every
region of its compute graph.
"""

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import checkpoints
import draft_head_models
import reference_models
from fuzz.files import Target, change_json
from fuzz.mutable_gguf import MutableGGUF
from fuzz.mutations import change_bytes, mutate
from fuzz.target import allocate_guarded, guard_tensors
from guard_pages import is_intact
from speculative_helpers import draft_of_block, evaluate_draft_head
from tiny import tiny_gemma3, tiny_llama

from localinfer.errors import LocalInferError
from localinfer.gguf.reader import open_gguf
from localinfer.graph.ops.buffers import Region
from localinfer.options import Options
from localinfer.runtime import snapshot
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import Extensions

IDS = [7 * number % 250 for number in range(40)]
RECURRENT_AND_LATENT = ("deepseek2", "mamba", "mamba2", "rwkv7", "lfm2", "qwen3next", "nemotron-h")
LIMITS = (0, 1, 2, 39, 40, 41, 64, 127, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


class Source(NamedTuple):
    """A model, its options, and the header and the body (tokens and arrays) of a valid snapshot."""

    path: Path
    options: Options
    header: dict[str, Any]
    body: bytes


class SnapshotFile(Target):
    """Snapshots of attention, sliding windows, ring buffers, latent attention and recurrent states."""

    def make(self) -> Sequence[bytes]:
        Region.allocate = allocate_guarded  # type: ignore[method-assign]
        self.sources = [self.snapshot_of(path, **options) for path, options in self.models()]
        self.engines: dict[int, Engine] = {}
        return []

    def models(self) -> Sequence[tuple[Path, dict[str, Any]]]:
        """Return the files of models, and the options of their engines."""
        llama, gemma3 = tiny_llama(self.folder / "llama.gguf"), tiny_gemma3(self.folder / "gemma3.gguf")
        chosen: list[tuple[Path, dict[str, Any]]] = [
            (llama, {}), (llama, {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}), (gemma3, {"batch_size": 16}),
            (llama, {"ctx_policy": "ring", "ctx_size": 64, "batch_size": 16}),
        ]  # fmt: skip
        for name in RECURRENT_AND_LATENT:
            if name in reference_models.NAMES:
                folder = self.folder / name
                folder.mkdir()
                path = checkpoints.as_f32(reference_models.checkpoint(name, folder), folder / "m.gguf")
                chosen.append((path, {}))
        return chosen

    def snapshot_of(self, path: Path, **changed: Any) -> Source:
        """Make a valid snapshot of a model."""
        options = Options(**({"threads": 1, "ctx_size": 64, "tune": False} | changed))
        engine = Engine.load(open_gguf(path), options)
        engine.evaluate(IDS)
        snapshot.save(self.folder / "valid", engine, options)
        engine.close()
        content = (self.folder / "valid").read_bytes()
        start = snapshot.PREAMBLE.size
        end = start + snapshot.PREAMBLE.unpack_from(content)[2]
        return Source(path, options, json.loads(content[start:end]), content[end : -snapshot.DIGEST_BYTES])

    def mutate(self, choose: Random) -> bytes:
        self.number = choose.randrange(len(self.sources))
        self.chosen = self.sources[self.number]
        header, body = json.dumps(self.chosen.header).encode(), bytearray(self.chosen.body)
        for _ in range(choose.randint(1, 3)):
            what = choose.randrange(6)
            if what == 0:
                header = change_json(header, choose)
            elif what == 1:  # keep the identity, which is compared first
                sizes = json.dumps(self.chosen.header["sizes"]).encode()
                header = header.replace(sizes, change_json(sizes, choose))
            elif what == 2:
                self.overwrite(body, choose, 4, range(0, 4 * len(IDS), 4))  # tokens
            elif what == 3:  # numbers of positions and pages: the first array of each cache
                self.overwrite(body, choose, 8, self.places_of_numbers())
            elif what == 4:
                self.overwrite(body, choose, choose.choice((2, 4)), range(0, len(body), 4))
            else:
                body = bytearray(change_bytes(bytes(body), choose)) or body
        content = snapshot.PREAMBLE.pack(snapshot.MAGIC, snapshot.FORMAT, len(header)) + header + bytes(body)
        content = change_bytes(content, choose) if choose.random() < 0.1 else content
        return content + blake2b(content, digest_size=snapshot.DIGEST_BYTES).digest()

    def places_of_numbers(self) -> Sequence[int]:
        """Return the offsets of the words in the first array of each cache."""
        start, places = 4 * len(IDS), []
        for sizes in self.chosen.header["sizes"]:
            places += [start + at for at in range(0, min(sizes[0], 4096) - 7, 8)] if sizes else []
            start += sum(sizes)
        return places or [0]

    @staticmethod
    def overwrite(body: bytearray, choose: Random, size: int, places: Sequence[int]) -> None:
        """Overwrite some words at these places."""
        for _ in range(choose.randint(1, 4)):
            at = choose.choice(places)
            old = int.from_bytes(body[at : at + size], "little")
            value = choose.choice((*LIMITS, old + 1, old - 1, choose.getrandbits(64), 0x7FC00000, 0x7F800000))
            body[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")

    def run(self, content: bytes, choose: Random) -> None:
        path, options = self.write("mutant", content), self.chosen.options
        if self.number not in self.engines:
            self.engines[self.number] = Engine.load(open_gguf(self.chosen.path), options)
        engine = self.engines[self.number]
        try:
            n = snapshot.load(path, engine, options)
        except LocalInferError:
            assert engine.n_past == 0
            raise
        assert n == engine.n_past == len(engine.sequence.tokens) <= engine.n_ctx
        engine.rewind(choose.randint(0, n))
        engine.checkpoint()
        if engine.n_ctx - engine.n_past >= 4:
            engine.evaluate(IDS[:4])
            engine.rewind(choose.randint(0, engine.n_past))
        snapshot.save(path, engine, options)
        engine.reset()
        check_regions(engine)


class DraftHeads(Target):
    """Heads in separate files, and MTP heads within models."""

    NAMES = "eagle3", "eagle3-borrowing", "eagle3-normed", "gemma4-assistant", "dflash", "dspark"

    def make(self) -> Sequence[bytes]:
        Region.allocate = allocate_guarded  # type: ignore[method-assign]
        self.pairs = []
        for name in self.NAMES:
            folder = self.folder / name
            folder.mkdir()
            self.pairs.append(draft_head_models.write_model_and_head(name, folder))
        heads = [MutableGGUF.read(pair.head) for pair in self.pairs]
        with_mtp = []
        for name in ("glm4moe", "qwen35"):
            folder = self.folder / name
            folder.mkdir()
            with_mtp.append(draft_head_models.write_with_mtp_head(name, folder, "F32"))
        self.with_mtp = with_mtp
        options = Options(threads=1, ctx_size=64, tune=False)
        for files in [*((pair.model, pair.head) for pair in self.pairs), *((path,) for path in with_mtp)]:
            model, *head = map(open_gguf, files)
            Engine.load(model, options, None, Extensions(head[0] if head else None)).close()  # loads the kernels
        assert all(heads)
        return []

    def mutate(self, choose: Random) -> bytes:
        self.number = choose.randrange(len(self.pairs) + len(self.with_mtp))
        is_head = self.number < len(self.pairs)
        path = self.pairs[self.number].head if is_head else self.with_mtp[self.number - len(self.pairs)]
        return mutate(MutableGGUF.read(path), choose)

    def run(self, content: bytes, choose: Random) -> None:
        mutant = self.write("mutant.gguf", content)
        is_head = self.number < len(self.pairs)
        options = Options(threads=1, ctx_size=64, tune=False)
        model = open_gguf(self.pairs[self.number].model if is_head else mutant)
        head = open_gguf(mutant) if is_head else None
        guard_tensors(head or model)
        engine = Engine.load(model, options, None, Extensions(head))
        try:
            if not engine.compiled_graph.has_draft_head:
                return
            engine.evaluate(IDS[:20])
            state = None
            is_block = engine.compiled_graph.model_graph.draft_block is not None
            if is_block:
                assert draft_of_block(engine, choose.randrange(engine.n_vocab), 20)[0].shape[1] == engine.n_vocab
            for step in range(0 if is_block else 4):
                logits, state = evaluate_draft_head(engine, choose.randrange(engine.n_vocab), 20 + step, state)
                assert len(logits) == engine.n_vocab
            engine.evaluate_draft([1, 2, 3])
            engine.rewind(21)
            engine.evaluate(IDS[:3])
            check_regions(engine)
        finally:
            engine.close()


def check_regions(engine: Engine) -> None:
    """Raise AssertionError if something was written beside a region."""
    assert all(is_intact(region.array) for region in engine.graph.regions if region.array is not None)
