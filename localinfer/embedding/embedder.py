"""Texts in, vectors out: an engine and a tokenizer, with what a file says of how the two are used to compare texts."""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from localinfer.embedding.classifier import Classifier
from localinfer.embedding.pooling import pooled
from localinfer.engine.engine import Engine
from localinfer.errors import ContextOverflow, UsageError
from localinfer.plan.pooling import POOLINGS
from localinfer.tokenizer import Tokenizer

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Progress = Callable[[str, int, int], None]  # (stage, done, total)

STAGE = "texts"
LARGEST = 32_760  # what the largest value becomes in the norm of number 0: vectors that are kept as 16 bits
RERANK_TEMPLATE = "tokenizer.chat_template.rerank"


class Embedder:
    """`pooling` is what is used where nobody says otherwise: the file's, or the mean of all tokens."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine, self._tokenizer = engine, tokenizer
        keys = engine.program.recorder.keys
        self.says = POOLINGS[keys.count("pooling_type", 0, least=0, most=len(POOLINGS) - 1)]
        self.pooling = "mean" if self.says == "none" else self.says
        self._classifier: Classifier | None = None

    def embed(
        self, texts: str | Sequence[str | Sequence[int]], pooling: str = "", *, normalize: bool | float = True,
        truncate: bool = False, progress: Progress | None = None,
    ) -> Floats:  # fmt: skip
        """See `localinfer.Model.embed`."""
        kind = pooling or self.pooling
        if kind not in POOLINGS[1:]:
            raise UsageError(f"pooling: must be {', '.join(POOLINGS[1:])}, not {kind}")
        given = [texts] if isinstance(texts, str) else list(texts)
        ids = [self._ids(number, text, truncate) for number, text in enumerate(given, 1)]
        vectors = self._vectors(ids, kind, (), progress)
        return vectors if kind == "rank" else normalized(vectors, normalize)

    def rerank(
        self, query: str, documents: Sequence[str], *, truncate: bool = False, progress: Progress | None = None
    ) -> Floats:
        """See `localinfer.Model.rerank`."""
        pairs = [self._pair(number, query, document, truncate) for number, document in enumerate(documents, 1)]
        return self._vectors([ids for ids, _ in pairs], "rank", [types for _, types in pairs], progress)[:, 0]

    # --- tokens ---

    def _ids(self, number: int, text: str | Sequence[int], truncate: bool) -> Ids:
        ids = self._tokenizer.encode(text) if isinstance(text, str) else list(text)
        if not ids:
            raise UsageError(f"text {number} is empty, and this model puts no token around it")
        ids = self._fitting(number, ids, ids[-1:] if ids[-1:] == self._tokenizer.ending else [], truncate)
        return self._engine.checked(ids)

    def _fitting(self, number: int, ids: list[int], ending: list[int], truncate: bool) -> list[int]:
        """The ids, if they fit, or as many of them as do, with the same ending."""
        n_ctx = self._engine.n_ctx
        if len(ids) <= n_ctx:
            return ids
        what = f"text {number} has {len(ids)} tokens, the context holds {n_ctx}"
        if not truncate:
            raise ContextOverflow(f"{what}; --truncate leaves out its end, --ctx-size sets a larger context")
        warnings.warn(f"{what}: its end is left out", stacklevel=4)
        return [*ids[: n_ctx - len(ending)], *ending]

    def _pair(self, number: int, query: str, document: str, truncate: bool) -> tuple[Ids, Ids]:
        """A query and a document as one text, and which of the two each token is of, as far as the model tells them
        apart."""
        template = self._engine.file.get(RERANK_TEMPLATE, str, "")
        encode, ending = self._tokenizer.encode, self._tokenizer.ending
        if template:
            first: list[int] = []
            second = encode(template.replace("{query}", query).replace("{document}", document), parse_special=True)
        else:
            first, second = encode(query), [*encode(document, add_special=False), *ending]
        several = self._engine.program.recorder.type_count > 1
        if not several and first:  # RoBERTa's kind, which has one mark more instead
            second = [*ending, *second]
        ids = self._fitting(number, [*first, *second], ending, truncate)
        types = np.repeat(np.array([0, int(several)], np.int32), [len(first), len(second)])
        return self._engine.checked(ids), types[: len(ids)]

    # --- vectors ---

    def _vectors(self, ids: Sequence[Ids], kind: str, types: Sequence[Ids], progress: Progress | None) -> Floats:
        recorder = self._engine.program.recorder
        if kind == "rank" and self._classifier is None:
            self._classifier = Classifier(self._engine.file, recorder.embedding_length, recorder.eps)
        if not ids:
            return np.zeros((0, recorder.embedding_length), np.float32)

        def tell(done: int) -> None:
            if progress:
                progress(STAGE, done, len(ids))

        with self._engine.lock:
            self._engine.file.check_unchanged()
            vectors = pooled(self._engine, ids, self._seen_by_classifier if kind == "rank" else kind, types, tell)
        return self._classifier.scores(vectors) if kind == "rank" and self._classifier else vectors

    @property
    def _seen_by_classifier(self) -> str:
        """Which vector of a text it is made for: the last token's, where only that sees all of it."""
        keys, recorder = self._engine.program.recorder.keys, self._engine.program.recorder
        if recorder.context.causal:
            return "last"
        usual = "mean" if keys.architecture == "modern-bert" else "cls"
        number = keys.count("classifier.pooling_type", POOLINGS.index(usual), least=1, most=3)
        return POOLINGS[number]


def normalized(vectors: Floats, norm: bool | float) -> Floats:
    """Divided by their norm of that number (True: 2), as llama.cpp counts them; vectors of zeros stay what they are."""
    number = {True: 2.0, False: -1.0}[norm] if isinstance(norm, bool) else float(norm)
    if number < 0:
        return vectors
    sizes = np.abs(vectors.astype(np.float64))
    if number == 0:
        lengths = sizes.max(axis=1, keepdims=True) / LARGEST
    else:
        lengths = (sizes**number).sum(axis=1, keepdims=True) ** (1 / number)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
