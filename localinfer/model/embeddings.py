"""Text embeddings and reranking."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from localinfer.generation.session import Progress
from localinfer.model.base import ModelBase

if TYPE_CHECKING:
    from localinfer.embedding.reranking import RankedDocument


class Embeddings(ModelBase):
    """Compute embeddings of texts, and rank documents."""

    def embed(self, texts: "str | Sequence[str | Sequence[int]]", *, pooling: str = "", normalize: bool | float = True,
              truncate: bool = False, progress: Progress | None = None) -> NDArray[np.float32]:
        """Return the embeddings of texts, or of lists of token ids: float32 (len(texts), n_embd).

        The texts are evaluated in batches, independently of each other. The KV cache of the previous conversation is
        discarded. `pooling` is "mean", "cls" (the first token), "last", or "rank" (the scores of a reranker's
        classifier); the default is the pooling type of the file, otherwise "mean". `normalize` divides each embedding
        by its Euclidean norm. A number selects another norm, as in llama.cpp: -1 none, 0 the maximum becomes 32760, 1
        taxicab, 2 Euclidean, p the p-norm. Scores are never normalized. `truncate` cuts texts that do not fit in the
        context, with a warning.

        Raises UsageError for no texts or empty texts, ContextOverflowError for a text that does not fit,
        UnsupportedError for pooling "rank" if the file has no classifier.
        """
        embedder = self._resources.embedder()
        return embedder.embed(texts, pooling, normalize=normalize, truncate=truncate, progress=progress)

    def embed_tokens(self, texts: Sequence[str | Sequence[int]]) -> list[NDArray[np.float32]]:
        """Return the embeddings of all tokens of each text or list of token ids, float32 (n_tokens, n_embd), not
        normalized.

        Raises what `embed` raises.
        """
        return self._resources.embedder().embed_tokens(texts)

    def count_rerank_tokens(self, query: str, documents: Sequence[str]) -> int:
        """Return the number of tokens of all pairs that `rerank` evaluates, cut to the context."""
        return self._resources.embedder().count_rerank_tokens(query, documents)

    def rerank(self, query: str, documents: Sequence[str], *, truncate: bool = False,
               progress: Progress | None = None) -> "list[RankedDocument]":
        """Return the documents in the order of their relevance to a query, each with its `index` and `score`.

        Raises UnsupportedError if the file has no classifier. Otherwise like `embed`.
        """
        from localinfer.embedding.reranking import rank

        scores = self._resources.embedder().rerank(query, documents, truncate=truncate, progress=progress)
        return rank(documents, scores)
