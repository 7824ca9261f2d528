"""The embedder: computes embeddings and reranking scores with an engine and a tokenizer."""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from localinfer.embedding.classifier import Classifier
from localinfer.embedding.pooling import pool_texts, token_states
from localinfer.errors import ContextOverflowError, UnsupportedError, UsageError
from localinfer.graph.properties.pooling import POOLINGS
from localinfer.runtime.batch import token_ids
from localinfer.runtime.engine import Engine
from localinfer.tokenizer import Tokenizer

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Progress = Callable[[str, int, int], None]  # (stage, done, total)

STAGE = "texts"
INT16_SCALE = 32_760  # norm 0 scales the largest absolute value to this, for storage as int16 (as in llama.cpp)
RERANK_TEMPLATE = "tokenizer.chat_template.rerank"


class Embedder:
    """Computes embeddings. `pooling` is the default: that of the file, or else "mean"."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        if engine.is_encoder_decoder:
            what = f"{engine.file.architecture} is an encoder-decoder model; embeddings are those of an encoder alone"
            raise engine.file.error("", f"{what} (t5encoder)", UnsupportedError)
        self._engine, self._tokenizer = engine, tokenizer
        keys = engine.compiled_graph.model_graph.hparams
        self.file_pooling = POOLINGS[keys.count("pooling_type", 0, minimum=0, maximum=len(POOLINGS) - 1)]
        self.pooling = "mean" if self.file_pooling == "none" else self.file_pooling
        self._classifier: Classifier | None = None

    def embed(
        self, texts: str | Sequence[str | Sequence[int]], pooling: str = "", *, normalize: bool | float = True,
        truncate: bool = False, progress: Progress | None = None,
    ) -> Floats:  # fmt: skip
        """See `localinfer.Model.embed`."""
        kind = pooling or self.pooling
        if kind not in POOLINGS[1:]:
            raise UsageError(f"pooling: must be {', '.join(POOLINGS[1:])}, not {kind}")
        text_list = [texts] if isinstance(texts, str) else list(texts)
        ids = [self._tokenize(number, text, truncate) for number, text in enumerate(text_list, 1)]
        vectors = self._pool(ids, kind, (), progress)
        return vectors if kind == "rank" else normalize_vectors(vectors, normalize)

    def rerank(
        self, query: str, documents: Sequence[str], *, truncate: bool = False, progress: Progress | None = None
    ) -> Floats:
        """Return the score of each document, float32 (len(documents),): see `localinfer.Model.rerank`."""
        pairs = [self._tokenize_pair(number, query, document, truncate) for number, document in enumerate(documents, 1)]
        return self._pool([ids for ids, _ in pairs], "rank", [types for _, types in pairs], progress)[:, 0]

    def embed_tokens(self, texts: Sequence[str | Sequence[int]]) -> list[Floats]:
        """Return the hidden states of the tokens of each text: see `localinfer.Model.embed_tokens`."""
        ids = [self._tokenize(number, text, truncate=False) for number, text in enumerate(texts, 1)]
        with self._engine.lock:
            self._engine.file.check_unchanged()
            states = [token_states(self._engine, each) for each in ids]
            self._engine.reset()
            return states

    def count_rerank_tokens(self, query: str, documents: Sequence[str]) -> int:
        """Return the number of tokens of all pairs of query and document, as far as they fit in the context."""
        pairs = (self._tokenize_pair(number, query, document, True) for number, document in enumerate(documents, 1))
        return sum(len(ids) for ids, _ in pairs)

    # --- tokens ---

    def _tokenize(self, number: int, text: str | Sequence[int], truncate: bool) -> Ids:
        ids = self._tokenizer.encode(text) if isinstance(text, str) else list(text)
        if not ids:
            raise UsageError(f"text {number}: is empty, and this model adds no special tokens")
        ids = self._fit_context(number, ids, ids[-1:] if ids[-1:] == self._tokenizer.eos_suffix else [], truncate)
        return token_ids(ids, self._engine.n_vocab)

    def _fit_context(self, number: int, ids: list[int], ending: list[int], truncate: bool) -> list[int]:
        """Return the ids, truncated to the context length if `truncate` is set; `ending` stays at the end.

        Raises ContextOverflowError if they do not fit and `truncate` is not set.
        """
        n_ctx = self._engine.n_ctx
        if len(ids) <= n_ctx:
            return ids
        message = f"text {number}: is too large: {len(ids)} tokens, more than the context length {n_ctx}"
        if not truncate:
            hint = "truncate (--truncate) drops its end, ctx_size (--ctx-size) sets a larger context"
            raise ContextOverflowError(f"{message}; {hint}")
        warnings.warn(f"{message}; its end is dropped", stacklevel=4)
        return [*ids[: n_ctx - len(ending)], *ending]

    def _tokenize_pair(self, number: int, query: str, document: str, truncate: bool) -> tuple[Ids, Ids]:
        """Tokenize a query and a document as one text. Returns the token ids and token type ids.

        The type ids are 0 for the query and 1 for the document if the model has token types, else all 0.
        """
        template = self._engine.file.get(RERANK_TEMPLATE, str, "")
        encode, ending = self._tokenizer.encode, self._tokenizer.eos_suffix
        if template:
            first: list[int] = []
            second = encode(template.replace("{query}", query).replace("{document}", document), parse_special=True)
        else:
            first, second = encode(query), [*encode(document, add_special=False), *ending]
            separator = self._tokenizer.pair_separator(default=self._is_roberta)
            second = [*separator[len(ending) :], *second]  # the query ends with the first token
        has_types = self._engine.compiled_graph.model_graph.type_count > 1
        ids = self._fit_context(number, [*first, *second], ending, truncate)
        types = np.repeat(np.array([0, int(has_types)], np.int32), [len(first), len(second)])
        return token_ids(ids, self._engine.n_vocab), types[: len(ids)]

    @property
    def _is_roberta(self) -> bool:
        """Whether the model is a RoBERTa or XLM-R. They separate texts by two tokens; older files do not state it."""
        model_graph = self._engine.compiled_graph.model_graph
        return model_graph.hparams.architecture == "bert" and model_graph.type_count < 2

    # --- vectors ---

    def _pool(self, ids: Sequence[Ids], kind: str, types: Sequence[Ids], progress: Progress | None) -> Floats:
        model_graph = self._engine.compiled_graph.model_graph
        if kind == "rank" and self._classifier is None:
            self._classifier = Classifier(self._engine.file, model_graph.embedding_length, model_graph.eps)
        if not ids:
            return np.zeros((0, model_graph.embedding_length), np.float32)

        def report(done: int) -> None:
            if progress:
                progress(STAGE, done, len(ids))

        with self._engine.lock:
            self._engine.file.check_unchanged()
            vectors = pool_texts(self._engine, ids, self._classifier_pooling if kind == "rank" else kind, types, report)
        return self._classifier.scores(vectors) if kind == "rank" and self._classifier else vectors

    @property
    def _classifier_pooling(self) -> str:
        """The pooling that the classifier expects: the last token in causal models, else the one in the file."""
        keys, model_graph = self._engine.compiled_graph.model_graph.hparams, self._engine.compiled_graph.model_graph
        if model_graph.context.causal:
            return "last"
        default = "mean" if keys.architecture == "modern-bert" else "cls"
        number = keys.count("classifier.pooling_type", POOLINGS.index(default), minimum=1, maximum=3)
        return POOLINGS[number]


def normalize_vectors(vectors: Floats, norm: bool | float) -> Floats:
    """Divide vectors by their p-norm, with llama.cpp's numbering (`--embd-normalize`); zero vectors stay unchanged.

    True means 2, False or a negative number no normalization, and 0 scaling by the largest absolute value.
    """
    number = {True: 2.0, False: -1.0}[norm] if isinstance(norm, bool) else float(norm)
    if number < 0:
        return vectors
    sizes = np.abs(vectors.astype(np.float64))
    if number == 0:
        lengths = sizes.max(axis=1, keepdims=True) / INT16_SCALE
    else:
        lengths = (sizes**number).sum(axis=1, keepdims=True) ** (1 / number)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
