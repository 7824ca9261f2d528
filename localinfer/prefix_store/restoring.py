"""Finding the longest stored prefix of a prompt, and loading it into the sequence of an engine."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from localinfer.errors import LocalInferError
from localinfer.graph.cache.page_pool import OutOfPagesError
from localinfer.prefix_store import sequence_parts
from localinfer.prefix_store.directory import block_name, entry_names, state_of_name
from localinfer.prefix_store.entry_file import CONTENT_ERRORS, read_entry
from localinfer.prefix_store.keys import BLOCK_TOKENS, block_digests, extend_digest
from localinfer.prefix_store.sequence_parts import Arrays
from localinfer.runtime.media.media_table import MediaTable
from localinfer.runtime.media.sequence_media import SequenceMedia
from localinfer.runtime.sequence_engine import SequenceEngine


class StoredPrefix(NamedTuple):
    """The files of a stored prefix with `n_tokens` tokens: its blocks, and the state after them, if it has one, which
    includes the tokens after the last whole block."""

    n_tokens: int
    blocks: Sequence[Path]
    state: Path | None

    @property
    def files(self) -> list[Path]:
        return [*self.blocks, *([self.state] if self.state else [])]


def find_longest(engine: SequenceEngine, directory: Path, root: str, tokens: Sequence[int]) -> StoredPrefix:
    """Return the longest stored prefix of tokens, which may be empty. It does not end within a bidirectional span of
    media rows."""
    table = engine.runner.media_table
    names, digests = entry_names(directory), block_digests(root, tokens, table)
    media = SequenceMedia(table).extended(tokens, 0)
    n_blocks = 0
    if sequence_parts.paged_caches(engine.sequence):
        blocks = [block_name(number, digest) for number, digest in enumerate(digests)]
        while n_blocks + 1 < len(blocks) and blocks[n_blocks + 1] in names:
            n_blocks += 1
        paths_of_blocks = [directory / name for name in blocks[1 : n_blocks + 1]]
    else:
        n_blocks, paths_of_blocks = len(digests), []
    known = matching_states(names, digests, tokens, table)
    states = [state for state in known if state[0] // BLOCK_TOKENS <= n_blocks and media.border(state[0]) == state[0]]
    n_tokens, name = max(states, default=(0, ""))
    if not sequence_parts.other_caches(engine.sequence):
        while media.border(n_blocks * BLOCK_TOKENS) < n_blocks * BLOCK_TOKENS:
            n_blocks -= 1
        if n_tokens <= n_blocks * BLOCK_TOKENS:
            return StoredPrefix(n_blocks * BLOCK_TOKENS, paths_of_blocks[:n_blocks], None)
    return StoredPrefix(n_tokens, paths_of_blocks[: n_tokens // BLOCK_TOKENS], directory / name if name else None)


def matching_states(
    names: set[str], digests: Sequence[str], tokens: Sequence[int], media: MediaTable | None = None
) -> Iterator[tuple[int, str]]:
    """Yield the states that belong to a prefix of `tokens`: the number of tokens, and the name of the file."""
    for name in names:
        n_tokens, digest = state_of_name(name)
        if 0 < n_tokens <= len(tokens):
            whole = n_tokens // BLOCK_TOKENS
            if extend_digest(digests[whole], tokens[whole * BLOCK_TOKENS : n_tokens], media) == digest:
                yield n_tokens, name


def read_entries(files: Sequence[Path]) -> list[Arrays | None]:
    """Read files, and verify their digests side by side."""
    with thread_pool() as pool:
        return list(pool.map(read_entry, files))


def thread_pool() -> ThreadPoolExecutor:
    """Return threads that read and copy."""
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1))


def load(engine: SequenceEngine, tokens: Sequence[int], entries: Sequence[Arrays]) -> bool:
    """Load a prefix into the sequence of an engine: the entries of its blocks, and its state if it has one.

    Return whether that succeeded; otherwise the sequence is empty.
    """
    runner, sequence, n_tokens = engine.runner, engine.sequence, len(tokens)
    n_blocks = n_tokens // BLOCK_TOKENS if sequence_parts.paged_caches(sequence) else 0
    try:
        with runner.page_table_lock:
            sequence.reset()
            runner.retry_after_eviction(partial(sequence_parts.reserve_blocks, sequence, n_blocks))
        # The first write to new memory takes longer than the copy, so several threads copy. Others use the page tables
        # meanwhile: these blocks have their pages already.
        with thread_pool() as pool:
            list(pool.map(partial(sequence_parts.load_block, sequence, n_blocks), range(n_blocks), entries))
        with runner.page_table_lock:
            for state in entries[n_blocks:]:
                runner.retry_after_eviction(partial(sequence_parts.load_state, sequence, state, n_tokens))
            sequence.accept_loaded(tokens)
    except (LocalInferError, OutOfPagesError, *CONTENT_ERRORS):
        with runner.page_table_lock:
            sequence.reset()
        return False
    return True
