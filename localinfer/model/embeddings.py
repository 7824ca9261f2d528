"""Text embeddings and reranking."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from localinfer.model.base import ModelBase
from quant.jit.loader import Progress

if TYPE_CHECKING:
    from localinfer.embedding.prompts import Prompts
    from localinfer.embedding.reranking import RankedDocument


class Embeddings(ModelBase):
    """Compute embeddings of texts, and rank documents."""

    @property
    def prompts(self) -> "Prompts":
        """The prompts of the model file for queries and documents, by name, and which of them is the default."""
        return self._resources.embedder().prompts

    def embed(self, texts: "str | Sequence[str | Sequence[int]]", *, pooling: str = "", normalize: bool | float = True,
              dimensions: int = 0, prompt: str | None = None, truncate: bool = False,
              progress: Progress | None = None) -> NDArray[np.float32]:
        """Return the embeddings of texts, or of lists of token ids: float32 (len(texts), n_embd).

        The texts are evaluated in batches, independently of each other. The KV cache of the previous conversation is
        discarded. `pooling` is "mean", "cls" (the first token), "last", or "rank" (the scores of a reranker's
        classifier); the default is the pooling type of the file, otherwise "mean". `normalize` divides each embedding
        by its Euclidean norm. A number selects another norm, as in llama.cpp: -1 none, 0 the maximum becomes 32760, 1
        taxicab, 2 Euclidean, p the p-norm. Scores are never normalized. `dimensions` cuts embeddings to so many values
        before that, 0 to all (Matryoshka embeddings). `prompt` is put before each text, but not before token ids; the
        default is the default prompt of the file, and `model.prompts.select("query")` is the one with this name.
        `truncate` cuts texts that do not fit in the context, with a warning.

        Raises UsageError for empty texts or more dimensions than embeddings have, ContextOverflowError for a text that
        does not fit, UnsupportedError for pooling "rank" if the file has no classifier.
        """
        from localinfer.embedding.vectors import VectorOptions

        embedder, options = self._resources.embedder(), VectorOptions(dimensions=dimensions, normalize=normalize)
        before = embedder.prompts.select(prompt=prompt)
        return embedder.embed(texts, pooling, prompt=before, options=options, truncate=truncate, progress=progress)

    def embed_tokens(self, texts: Sequence[str | Sequence[int]], *, normalize: bool | float = False,
                     dimensions: int = 0, prompt: str | None = None, truncate: bool = False,
                     progress: Progress | None = None) -> list[NDArray[np.float32]]:
        """Return the embeddings of all tokens of each text or list of token ids, float32 (n_tokens, n_embd).

        This is llama.cpp's pooling "none". The embeddings are not normalized unless `normalize` says so; the other
        arguments, and the errors raised, are those of `embed`.
        """
        from localinfer.embedding.vectors import VectorOptions

        embedder, options = self._resources.embedder(), VectorOptions(dimensions=dimensions, normalize=normalize)
        before = embedder.prompts.select(prompt=prompt)
        return embedder.embed_tokens(texts, prompt=before, options=options, truncate=truncate, progress=progress)

    def count_rerank_tokens(self, query: str, documents: Sequence[str], instruction: str = "") -> int:
        """Return the number of tokens of all pairs that `rerank` evaluates, cut to the context."""
        return self._resources.embedder().count_rerank_tokens(query, documents, instruction)

    def rerank(self, query: str, documents: Sequence[str], *, instruction: str = "", sigmoid: bool = False,
               truncate: bool = False, progress: Progress | None = None) -> "list[RankedDocument]":
        """Return the documents in the order of their relevance to a query, each with its `index` and `score`.

        `instruction` says what makes a document relevant, to a reranker that takes one. `sigmoid` maps scores to 0..1
        by 1 / (1 + e^-score); scores that are probabilities already, as Qwen3-Reranker's, stay as they are.

        Raises UnsupportedError if the file has no classifier, or one of several classes; UsageError for an instruction
        if the model takes none. Otherwise like `embed`.
        """
        from localinfer.embedding.reranking import rank

        scores = self._resources.embedder().rerank(
            query, documents, instruction=instruction, sigmoid=sigmoid, truncate=truncate, progress=progress
        )
        return rank(documents, scores)
