"""KL divergence of quantized files from their source model, KL(source || file), on texts of several kinds.

    evaluator = DivergenceEvaluator(source, {"prose": path}, chunks=2, folder=folder)
    evaluator(file)["prose"]        # nats for each scored token: float64 (tokens,)

The conventions are those of `localinfer compare --precision high`: chunks of 512 tokens, of which the second half is
scored. The source's log-probabilities are computed once and stored in the folder, 4 bytes x tokens x vocabulary for
each text. Each file is loaded once for all texts.
"""

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np

from localinfer import tokenizer
from localinfer.evaluation.compare import score
from localinfer.evaluation.perplexity import Tokens, Values, log_sum_exp, require_finite, score_chunk
from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.options import Options
from localinfer.runtime.batch import Logits
from localinfer.runtime.engine import Engine
from localinfer.tokenizer.chunks import Chunks, split_text

N_CTX = 512


class DivergenceEvaluator:
    """Compares quantized files with one source model."""

    def __init__(self, source: Path, texts: Mapping[str, Path], *, chunks: int, folder: Path, threads: int = 2) -> None:
        self.threads = threads
        opened = open_gguf(source)
        words = tokenizer.from_gguf(opened)
        contents = {kind: path.read_text(encoding="utf-8") for kind, path in texts.items()}
        self.chunks = {kind: split_text(words, text, N_CTX, max_chunks=chunks) for kind, text in contents.items()}
        self.base = {kind: self._source_log_probabilities(opened, kind, folder) for kind in texts}

    def __call__(self, file: Path) -> dict[str, Values]:
        """Return the divergence of each scored token in nats, by kind of text."""
        with closing(self._engine(open_gguf(file))) as engine, ThreadPoolExecutor(self.threads) as pool:
            return {kind: self._divergence(engine, kind, pool) for kind in self.chunks}

    def _divergence(self, engine: Engine, kind: str, pool: ThreadPoolExecutor) -> Values:
        actual, at = [], 0
        for logits, following in scored_logits(engine, self.chunks[kind]):
            base = self.base[kind][at : at + len(logits)]
            chunks = [np.array_split(x, self.threads) for x in (base, logits, following)]
            actual += [scores.divergence for scores in pool.map(score, *chunks)]
            at += len(logits)
        values = np.concatenate(actual)
        require_finite(engine, values)
        return values

    def _source_log_probabilities(self, source: GGUF, kind: str, folder: Path) -> Logits:
        """Return the source's log-probabilities, a memory-mapped array (tokens, n_vocab)."""
        name = hashlib.sha256(self.chunks[kind].tobytes()).hexdigest()[:8]
        path = folder / f"{source.path.stem}-{kind}-{name}.npy"
        if not path.exists():
            partial_path = path.with_suffix(".part")
            with closing(self._engine(source)) as engine:
                write_log_probabilities(engine, self.chunks[kind], partial_path)
            partial_path.replace(path)
        logarithms: Logits = np.load(path, mmap_mode="r")
        return logarithms

    def _engine(self, file: GGUF) -> Engine:
        options = Options(ctx_size=N_CTX, batch_size=N_CTX, precision="high", threads=self.threads)
        return Engine.load(file, options)


def scored_logits(engine: Engine, chunks: Chunks) -> Iterator[tuple[Logits, Tokens]]:
    """Yield the logits of scored tokens and the tokens that follow them. A view is valid until the next one."""
    for chunk in chunks:
        yield from score_chunk(engine, chunk)


def write_log_probabilities(engine: Engine, chunks: Chunks, path: Path) -> None:
    """Write the log-probabilities of all scored tokens."""
    count = len(chunks) * (N_CTX - 1 - N_CTX // 2)
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(count, engine.n_vocab))
    at = 0
    for logits, _ in scored_logits(engine, chunks):
        for row in logits:
            out[at] = row - np.float32(log_sum_exp(row))
            at += 1
    assert at == count
    out.flush()
