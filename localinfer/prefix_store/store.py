"""Saving the evaluated prefixes of a model's sequences, and restoring them in another program.

    store = PrefixStore(paths.prefixes_dir(), max_bytes, options)
    n_past = store.restore(engine, prompt, engine.reuse_prefix(...))     # the engine's sequence, now with n_past tokens
    ...                                                                  # evaluate
    store.save(engine)

A restored sequence has the bits that a fresh evaluation gives, because logits do not depend on how a prompt is divided
into batches. Models whose caches all keep all positions can be restored after each block, and after the answer. Those
with sliding windows or recurrent states can be restored where a state was saved: at some positions of the prompt, at
its end, and after the answer.
"""

import json
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from localinfer import paths
from localinfer.errors import LocalInferError
from localinfer.graph.cache.sequence_cache import Bytes, HeldPages
from localinfer.options import Options
from localinfer.prefix_store import sequence_parts
from localinfer.prefix_store.directory import LOG_FILE, MODEL_FILE, block_name, entry_names, state_name, touch
from localinfer.prefix_store.keys import BLOCK_TOKENS, block_digests, extend_digest, root_digest
from localinfer.prefix_store.restoring import find_longest, load, matching_states, read_entries
from localinfer.prefix_store.sequence_parts import Arrays
from localinfer.prefix_store.writer import Contents, Writer
from localinfer.runtime.sequence import Sequence as TokenSequence
from localinfer.runtime.sequence_engine import SequenceEngine
from localinfer.runtime.snapshot import snapshot_identity

MIN_TOKENS = 512  # of a prefix that is stored; shorter ones are evaluated in no time
MIN_GAIN = 128  # tokens that restoring must save, beyond those in memory
STATE_INTERVAL = 2048  # tokens of a prompt between states
MIN_STATE_DISTANCE = 256  # tokens after the last state, for another one at the end of a prompt or an answer
MIN_TAIL = 8  # tokens after the last whole block of an answer that are stored


class PrefixStore:
    """The stored prefixes of a loaded model. All its engines share it; each one calls it from its own thread, with its
    lock held."""

    def __init__(self, root: Path, max_bytes: int, options: Options) -> None:
        self._root, self._options = root, options
        self._writer = Writer(root, max_bytes)
        # The first digest, and the directory, by the scales of the LoRA adapters.
        self._models: dict[tuple[float, ...], tuple[str, Path]] = {}
        self._has_warned = False

    def close(self) -> None:
        """Wait until everything is written."""
        self._writer.wait()

    @property
    def problem(self) -> str:
        """Why nothing is written any more, or ""."""
        return self._writer.problem

    # --- restoring ---

    def restore(self, engine: SequenceEngine, prompt: Sequence[int], n_reused: int) -> int:
        """Replace the sequence of an engine, which begins with the first `n_reused` tokens of a prompt, by a longer
        stored prefix of it, if there is one. Return the number of tokens that it has then; at least one remains to be
        evaluated.
        """
        if len(prompt) <= MIN_TOKENS or engine.runner.uses_ring_buffer:
            return n_reused
        try:
            return self._restore(engine, prompt, n_reused)
        except (OSError, LocalInferError) as error:
            self._stop(error)
            return engine.n_past

    def _restore(self, engine: SequenceEngine, prompt: Sequence[int], n_reused: int) -> int:
        root, directory = self._opened(engine)
        while True:
            found = find_longest(engine, directory, root, prompt[: len(prompt) - 1])
            if found.n_tokens < n_reused + MIN_GAIN:
                return n_reused
            entries = read_entries(found.files)
            damaged = [path for path, entry in zip(found.files, entries, strict=True) if entry is None]
            for path in damaged:
                path.unlink(missing_ok=True)
            if not damaged:
                break
        if not load(engine, prompt[: found.n_tokens], [entry for entry in entries if entry is not None]):
            return 0
        touch(found.files)
        with (directory / LOG_FILE).open("a") as log:
            log.write(f"{found.n_tokens - n_reused}\n")
        return found.n_tokens

    # --- saving ---

    def state_positions(self, engine: SequenceEngine, first: int, end: int) -> Iterator[int]:
        """Yield the positions between `first` and `end` at which the evaluation of a prompt should stop for `save`."""
        if end > MIN_TOKENS and not engine.runner.uses_ring_buffer and sequence_parts.other_caches(engine.sequence):
            yield from range(first - first % STATE_INTERVAL + STATE_INTERVAL, end, STATE_INTERVAL)

    def save(self, engine: SequenceEngine, *, rewound: int = 0, after_answer: bool = False) -> None:
        """Save what the store lacks of an engine's sequence, without its last `rewound` tokens. The engine must not be
        evaluating any. What is saved before an answer is written after it, or after some seconds."""
        self._warn()  # of an error in the background
        n_tokens = len(engine.sequence) - rewound
        if n_tokens < MIN_TOKENS or engine.runner.uses_ring_buffer or self.problem:
            return
        lock = engine.runner.page_table_lock
        with lock:
            sequence = engine.sequence.fork()
            n_tokens = sequence.rewind(n_tokens)
        try:
            if n_tokens >= MIN_TOKENS:
                self._save(engine, sequence, after_answer=after_answer)
        except (OSError, LocalInferError) as error:
            self._stop(error)
        finally:
            with lock:
                sequence.reset()
        if after_answer:
            self._writer.release()

    def _save(self, engine: SequenceEngine, sequence: TokenSequence, *, after_answer: bool) -> None:
        lock, (root, directory) = engine.runner.page_table_lock, self._opened(engine)
        tokens, names = sequence.tokens, entry_names(directory) | self._writer.waiting_names()
        table = sequence.media.table
        digests = block_digests(root, tokens, table)
        if sequence_parts.paged_caches(sequence):
            blocks = [directory / block_name(number, digest) for number, digest in enumerate(digests)][1:]
            touch([path for path in blocks if path.name in names])
            for number, path in enumerate(blocks):
                if path.name not in names and self._writer.accepts(path):
                    with lock:
                        held = sequence_parts.hold_block(sequence, number)
                    self._writer.write(path, Contents(nbytes(held), partial(copy_block, held, lock)))
        states = dict(matching_states(names, digests, tokens, table))
        if needs_state(sequence, states, after_answer=after_answer):
            digest = extend_digest(digests[-1], tokens[len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS :], table)
            path = directory / state_name(len(tokens), digest)
            if self._writer.accepts(path):
                with lock:
                    state = sequence_parts.save_state(sequence)
                self._writer.write(path, Contents(sum(map(nbytes, state)), lambda: state))
        if not sequence_parts.other_caches(sequence):
            for n_tokens, name in states.items():
                if n_tokens <= len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS:  # this tail is in whole blocks by now
                    (directory / name).unlink(missing_ok=True)

    # --- the directory ---

    def _stop(self, error: Exception) -> None:
        """Store nothing any more after an error of the file system. The model works without the store."""
        self._writer.problem = self._writer.problem or str(error)
        self._warn()

    def _warn(self) -> None:
        """Warn of an error once."""
        if self.problem and not self._has_warned:
            self._has_warned = True
            warnings.warn(f"prefix store: {self.problem}; prompts are not stored", stacklevel=2)

    def _opened(self, engine: SequenceEngine) -> tuple[str, Path]:
        """Return the digest that names the model with its settings, and its directory, which is created."""
        scales = engine.sequence.modifiers.scales
        if scales not in self._models or not self._models[scales][1].is_dir():  # it may be removed at any time
            identity = snapshot_identity(engine, self._options)
            if not sequence_parts.has_windows(engine.sequence):
                del identity["batch"]  # only the memory of sliding windows depends on it
            root = root_digest(identity)
            directory = paths.private_directory(self._root / root)
            about = {"model": str(engine.file.path), "settings": identity}
            (directory / MODEL_FILE).write_text(json.dumps(about))
            self._models[scales] = root, directory
        return self._models[scales]


def nbytes(parts: Iterable[Bytes | HeldPages]) -> int:
    """Return the size of arrays or pages in bytes."""
    return sum(part.nbytes for part in parts)


def copy_block(held: Sequence[HeldPages], page_table_lock: AbstractContextManager[object]) -> Arrays:
    """Return copies of the pages of a block, which are held no longer."""
    with page_table_lock:  # for a moment: other sequences are evaluated meanwhile
        return [pages.copy() for pages in held]


def needs_state(sequence: TokenSequence, states: Collection[int], *, after_answer: bool) -> bool:
    """Return whether a state should be saved at the end of a sequence. `states` are the numbers of tokens after which
    its prefixes have one."""
    n_tokens = len(sequence)
    if not sequence_parts.other_caches(sequence):  # only the tail is missing, the tokens after the last whole block
        return after_answer and n_tokens % BLOCK_TOKENS >= MIN_TAIL and n_tokens not in states
    last = max(states, default=0)
    return n_tokens >= last + MIN_STATE_DISTANCE or n_tokens % STATE_INTERVAL == 0
