"""How far files are from the source that they were made of: KL(source || file) on texts of several kinds.

    judge = Judge(source, {"prose": path}, chunks=2, folder=folder)
    judge(file)["prose"]            # nats, one for each token that is scored: float64 (tokens,)

The conventions are those of `localinfer compare --precision high`: chunks of 512 tokens, of which the second half is
scored. The source's log-probabilities are computed once and kept in the folder, 4 bytes x tokens x vocabulary for each
text; each file is loaded once for all texts.
"""

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np

from localinfer import tokenizer
from localinfer.engine.engine import Engine, Logits
from localinfer.files.gguf import GGUF, open_gguf
from localinfer.judging.chunks import Chunks, cut
from localinfer.judging.compare import score
from localinfer.judging.perplexity import Tokens, Values, log_sum_exp, require_finite, scored
from localinfer.options import Options

N_CTX = 512


class Judge:
    """Compares files with one source."""

    def __init__(self, source: Path, texts: Mapping[str, Path], *, chunks: int, folder: Path, threads: int = 2) -> None:
        self.threads = threads
        opened = open_gguf(source)
        words = tokenizer.from_gguf(opened)
        contents = {kind: path.read_text(encoding="utf-8") for kind, path in texts.items()}
        self.chunks = {kind: cut(words, text, N_CTX, most=chunks) for kind, text in contents.items()}
        self.base = {kind: self._logarithms(opened, kind, folder) for kind in texts}

    def __call__(self, file: Path) -> dict[str, Values]:
        """The divergence of each token that is scored, by the kind of text."""
        with closing(self._engine(open_gguf(file))) as engine, ThreadPoolExecutor(self.threads) as pool:
            return {kind: self._divergence(engine, kind, pool) for kind in self.chunks}

    def _divergence(self, engine: Engine, kind: str, pool: ThreadPoolExecutor) -> Values:
        found, at = [], 0
        for logits, following in rows(engine, self.chunks[kind]):
            base = self.base[kind][at : at + len(logits)]
            parts = [np.array_split(x, self.threads) for x in (base, logits, following)]
            found += [scores.divergence for scores in pool.map(score, *parts)]
            at += len(logits)
        values = np.concatenate(found)
        require_finite(engine, values)
        return values

    def _logarithms(self, source: GGUF, kind: str, folder: Path) -> Logits:
        """The source's log-probabilities, (tokens, n_vocab), which stay in their file."""
        name = hashlib.sha256(self.chunks[kind].tobytes()).hexdigest()[:8]
        path = folder / f"{source.path.stem}-{kind}-{name}.npy"
        if not path.exists():
            part = path.with_suffix(".part")
            with closing(self._engine(source)) as engine:
                write(engine, self.chunks[kind], part)
            part.replace(path)
        logarithms: Logits = np.load(path, mmap_mode="r")
        return logarithms

    def _engine(self, file: GGUF) -> Engine:
        options = Options(ctx_size=N_CTX, batch_size=N_CTX, precision="high", threads=self.threads)
        return Engine(file, options)


def rows(engine: Engine, chunks: Chunks) -> Iterator[tuple[Logits, Tokens]]:
    """The logits of all tokens that are scored, and the tokens that follow; each until the next is asked for."""
    for chunk in chunks:
        yield from scored(engine, chunk)


def write(engine: Engine, chunks: Chunks, path: Path) -> None:
    """Write the log-probabilities of all tokens that are scored."""
    count = len(chunks) * (N_CTX - 1 - N_CTX // 2)
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(count, engine.n_vocab))
    at = 0
    for logits, _ in rows(engine, chunks):
        for row in logits:
            out[at] = row - np.float32(log_sum_exp(row))
            at += 1
    assert at == count
    out.flush()
