"""The embedder: computes embeddings and reranking scores with an engine and a tokenizer."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from localinfer.embedding.classifier import Classifier, logistic
from localinfer.embedding.dense import DenseLayers
from localinfer.embedding.list_reranking import ListReranker, ListTemplate
from localinfer.embedding.pooling import pool_texts, token_states
from localinfer.embedding.prompts import read_prompts
from localinfer.embedding.rerank_template import FilledTemplate, RerankTemplate
from localinfer.embedding.text_length import note_length
from localinfer.embedding.vectors import VectorOptions
from localinfer.errors import UnsupportedError, UsageError
from localinfer.gguf.pooling import POOLINGS
from localinfer.runtime.engine import Engine
from localinfer.runtime.token_checks import token_ids
from localinfer.tokenizer import Tokenizer

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Progress = Callable[[str, int, int], None]  # (stage, done, total)

STAGE = "texts"


class Embedder:
    """Computes embeddings. `pooling` is the default: that of the file, or else "mean". `prompts` are the file's."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        if engine.context.encoder_decoder:
            what = f"{engine.file.architecture} is an encoder-decoder model; embeddings are those of an encoder alone"
            raise engine.file.error("", f"{what} (t5encoder)", UnsupportedError)
        self._engine, self._tokenizer = engine, tokenizer
        keys = engine.compiled_graph.model_graph.hparams
        self.file_pooling = POOLINGS[keys.count("pooling_type", 0, minimum=0, maximum=len(POOLINGS) - 1)]
        self.pooling = "mean" if self.file_pooling == "none" else self.file_pooling
        self._classifier: Classifier | None = None
        self._template = RerankTemplate.read(engine.file)
        self._dense = DenseLayers(engine.file, engine.compiled_graph.model_graph.embedding_length)
        self.prompts = read_prompts(engine.file)

    def embed(
        self, texts: str | Sequence[str | Sequence[int]], pooling: str = "", *, options: VectorOptions,
        prompt: str = "", truncate: bool = False, progress: Progress | None = None,
    ) -> Floats:  # fmt: skip
        """See `localinfer.Model.embed`. The `prompt` is put before texts, but not before token ids."""
        kind = pooling or self.pooling
        if kind not in POOLINGS:
            raise UsageError(f"pooling: must be {', '.join(POOLINGS)}, not {kind}")
        if kind == "none":
            raise UsageError("pooling none: has no embedding of a whole text, only those of its tokens (embed_tokens)")
        if kind == "rank" and options.dimensions:
            raise UsageError("dimensions (--dimensions): scores of a classifier (pooling rank) cannot be cut")
        classifier = self._read_classifier() if kind == "rank" else None
        options.check(self._dense.n_out)
        text_list = [texts] if isinstance(texts, str) else list(texts)
        ids = self._tokenize_all(text_list, prompt, truncate)
        vectors = self._pool(ids, kind, (), progress)
        return classifier.scores(vectors) if classifier else options.apply(self._dense.apply(vectors))

    def rerank(
        self, query: str, documents: Sequence[str], *, instruction: str = "", sigmoid: bool = False,
        truncate: bool = False, progress: Progress | None = None,
    ) -> Floats:  # fmt: skip
        """Return the score of each document, float32 (len(documents),): see `localinfer.Model.rerank`."""
        if reranker := self._list_reranker:
            report = reporter(progress, len(documents))
            scores = reranker.scores(query, documents, instruction, truncate=truncate, progress=report)
            return logistic(scores) if sigmoid else scores
        classifier = self._read_classifier()
        pairs = self._tokenize_pairs(query, documents, instruction, truncate)
        vectors = self._pool([ids for ids, _ in pairs], "rank", [types for _, types in pairs], progress)
        return classifier.rank_scores(vectors, sigmoid=sigmoid)

    def embed_tokens(
        self, texts: Sequence[str | Sequence[int]], *, options: VectorOptions, prompt: str = "", truncate: bool = False,
        progress: Progress | None = None,
    ) -> list[Floats]:  # fmt: skip
        """Return the vectors of the tokens of each text: see `localinfer.Model.embed_tokens`."""
        options.check(self._dense.n_out)
        ids = self._tokenize_all(list(texts), prompt, truncate)
        vectors = []
        with self._engine.lock:
            self._engine.file.check_unchanged()
            for done, each in enumerate(ids, 1):
                vectors.append(options.apply(self._dense.apply(token_states(self._engine, each))))
                if progress:
                    progress(STAGE, done, len(ids))
            self._engine.reset()
        return vectors

    def count_rerank_tokens(self, query: str, documents: Sequence[str], instruction: str = "") -> int:
        """Return the number of tokens of all pairs of query and document, or of the prompts with several documents, as
        far as they fit in the context."""
        if reranker := self._list_reranker:
            return sum(len(each.ids) for each in reranker.prompts(query, documents, instruction, truncate=True))
        return sum(len(ids) for ids, _ in self._tokenize_pairs(query, documents, instruction, truncate=True))

    # --- tokens ---

    def _tokenize_all(self, texts: Sequence[str | Sequence[int]], prompt: str, truncate: bool) -> list[Ids]:
        with_prompt = (prompt + text if isinstance(text, str) else text for text in texts)
        return [self._tokenize(number, text, truncate) for number, text in enumerate(with_prompt, 1)]

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
        note_length(number, len(ids), n_ctx, truncate=truncate)
        kept = ending if len(ending) < n_ctx else []
        return [*ids[: n_ctx - len(kept)], *kept]

    def _tokenize_pairs(
        self, query: str, documents: Sequence[str], instruction: str, truncate: bool
    ) -> list[tuple[Ids, Ids]]:
        """Tokenize a query with each document as one text: see `_tokenize_pair`."""
        template = self._template.with_instruction(instruction)
        return [
            self._tokenize_pair(number, template, query, document, truncate)
            for number, document in enumerate(documents, 1)
        ]

    def _tokenize_pair(
        self, number: int, template: FilledTemplate | None, query: str, document: str, truncate: bool
    ) -> tuple[Ids, Ids]:
        """Tokenize a query and a document as one text. Returns the token ids and token type ids.

        The type ids are 0 for the query and 1 for the document if the model has token types, else all 0.
        """
        encode, ending = self._tokenizer.encode, self._tokenizer.eos_suffix
        if template:
            encode_prompt = partial(encode, add_special=False, parse_special=True)
            first: list[int] = []
            second, ending = template.encode(encode_prompt, query, document), template.ending(encode_prompt)
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

    @cached_property
    def _list_reranker(self) -> ListReranker | None:
        """What ranks lists of documents, if the model reads all of them in one prompt."""
        template = ListTemplate.read(self._engine.file)
        return ListReranker(self._engine, self._tokenizer, template, self._dense) if template else None

    def _read_classifier(self) -> Classifier:
        if self._list_reranker:
            what = "reads a query with all documents, and has no scores of single texts; `localinfer rerank` ranks them"
            raise self._engine.file.error("", what, UnsupportedError)
        if self._classifier is None:
            model_graph = self._engine.compiled_graph.model_graph
            self._classifier = Classifier(self._engine.file, model_graph.embedding_length, model_graph.eps)
        return self._classifier

    def _pool(self, ids: Sequence[Ids], kind: str, types: Sequence[Ids], progress: Progress | None) -> Floats:
        """Return what `pool_texts` returns; for pooling "rank" what the classifier expects."""
        model_graph = self._engine.compiled_graph.model_graph
        if not ids:
            return np.zeros((0, model_graph.embedding_length), np.float32)

        with self._engine.lock:
            self._engine.file.check_unchanged()
            pooling, report = self._classifier_pooling if kind == "rank" else kind, reporter(progress, len(ids))
            return pool_texts(self._engine, ids, pooling, types, report)

    @property
    def _classifier_pooling(self) -> str:
        """The pooling that the classifier expects: the last token in causal models, else the one in the file."""
        keys, model_graph = self._engine.compiled_graph.model_graph.hparams, self._engine.compiled_graph.model_graph
        if model_graph.context.causal:
            return "last"
        default = "mean" if keys.architecture == "modern-bert" else "cls"
        number = keys.count("classifier.pooling_type", POOLINGS.index(default), minimum=1, maximum=3)
        return POOLINGS[number]


def reporter(progress: Progress | None, total: int) -> Callable[[int], None]:
    """Return a function that reports how many of the texts are done."""
    return lambda done: progress(STAGE, done, total) if progress else None
