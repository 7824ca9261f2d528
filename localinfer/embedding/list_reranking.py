"""Reranking of all documents in one prompt (jina-reranker-v3; Wang et al., 2025: Last but Not Late Interaction).

A decoder reads the query and many documents, so that these can be compared with each other. A marker token follows each
document, and the query at the end. The hidden states of the markers become vectors by the dense layers of the file. The
score of a document is the cosine similarity of its vector and that of the query.

If there are more documents than a prompt may have, or than fit in the context, they are read in blocks. The vector of
the query is then the mean of those of the blocks, weighted by (1 + the best score of the block) / 2.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.embedding.dense import DenseLayers
from localinfer.embedding.pooling import token_states
from localinfer.embedding.rerank_template import NO_INSTRUCTION
from localinfer.embedding.text_length import note_length
from localinfer.errors import ContextOverflowError, UsageError
from localinfer.gguf.pooling import RERANK_LIST_DOCUMENT, RERANK_LIST_INSTRUCTION_TEMPLATE, RERANK_LIST_TEMPLATE
from localinfer.gguf.reader import GGUF
from localinfer.runtime.engine import Engine
from localinfer.runtime.token_checks import token_ids
from localinfer.tokenizer import Tokenizer

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]

MAX_DOCUMENTS = 125  # in one prompt, as the authors of the model have it
PLACEHOLDER = re.compile(r"\{(query|documents|document|count|index|instruction)\}")
MARKER = r"(<\|[^|]+\|>)"  # the token after a text
DOCUMENT_MARKER, QUERY_MARKER = re.compile(r"\{document\}" + MARKER), re.compile(r"\{query\}" + MARKER)
TINY = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class ListTemplate:
    """The templates of a prompt: `text` has {count}, {query}, {documents} and, if it is one for prompts with an
    instruction, {instruction}. `document` has {index} and {document}."""

    text: str
    instruction_text: str
    document: str

    @classmethod
    def read(cls, f: GGUF) -> "ListTemplate | None":
        """Return the templates of a model file, or None if it reads no lists. Raises LocalInferError if a marker is
        missing."""
        keys = (RERANK_LIST_TEMPLATE, RERANK_LIST_INSTRUCTION_TEMPLATE, RERANK_LIST_DOCUMENT)
        text, instruction_text, document = (f.get(key, str, "") for key in keys)
        if not text:
            return None
        if not DOCUMENT_MARKER.search(document):
            raise f.error(RERANK_LIST_DOCUMENT, "has no token after {document}")
        for key, each in zip(keys[:2], (text, instruction_text), strict=True):
            if each and not QUERY_MARKER.search(each):
                raise f.error(key, "has no token after {query}")
        return cls(text, instruction_text, document)

    @property
    def markers(self) -> tuple[str, str]:
        """The tokens after a document and after the query."""
        return DOCUMENT_MARKER.findall(self.document)[0], QUERY_MARKER.findall(self.text)[0]

    def fill(self, query: str, documents: Sequence[str], instruction: str) -> str:
        """Return the prompt for some documents."""
        listed = "".join(
            filled(self.document, index=str(index), document=self.without_markers(document))
            for index, document in enumerate(documents)
        )
        template = self.instruction_text if instruction else self.text
        return filled(
            template, count=str(len(documents)), query=self.without_markers(query), documents=listed,
            instruction=self.without_markers(instruction),
        )  # fmt: skip

    def without_markers(self, text: str) -> str:
        """Return a text without markers, of which removing one may make another one."""
        while any(marker in text for marker in self.markers):
            for marker in self.markers:
                text = text.replace(marker, "")
        return text


class ListPrompt(NamedTuple):
    """The token ids of a prompt, and the number of its documents."""

    ids: Ids
    n_documents: int


def filled(template: str, **values: str) -> str:
    """Return a template with values in place of its placeholders; those in values stay as they are."""
    return PLACEHOLDER.sub(lambda name: values.get(name[1], name[0]), template)


class ListReranker:
    """Scores documents with an engine, whose model file has a template and dense layers for it.

    Raises LocalInferError if a marker is not one token of the vocabulary.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, template: ListTemplate, dense: DenseLayers) -> None:
        self._engine, self._tokenizer, self._template, self._dense = engine, tokenizer, template, dense
        markers = [self._encode(marker) for marker in template.markers]
        for marker, ids in zip(template.markers, markers, strict=True):
            if len(ids) != 1:
                raise engine.file.error(RERANK_LIST_TEMPLATE, f"{marker!r} is not a token of the vocabulary")
        self._markers = [ids[0] for ids in markers]

    def scores(
        self, query: str, documents: Sequence[str], instruction: str, *, truncate: bool,
        progress: Callable[[int], None],
    ) -> Floats:  # fmt: skip
        """Return the score of each document, float32 (len(documents),), from -1 to 1. `progress` is called with the
        number of documents that are read."""
        queries, vectors, weights, done = [], [], [], 0
        with self._engine.lock:
            self._engine.file.check_unchanged()
            for prompt in self.prompts(query, documents, instruction, truncate=truncate):
                of_documents, of_query = self._vectors(prompt)
                queries.append(of_query)
                vectors.append(of_documents)
                weights.append((1 + cosines(of_documents, of_query).max()) / 2)
                done += len(of_documents)
                progress(done)
            self._engine.reset()
        if not vectors:
            return np.zeros(0, np.float32)
        merged = np.average(queries, axis=0, weights=np.maximum(weights, TINY))
        return cosines(np.concatenate(vectors), merged)

    def prompts(
        self, query: str, documents: Sequence[str], instruction: str, *, truncate: bool
    ) -> Iterator[ListPrompt]:
        """Yield the prompt of each block of documents.

        Raises ContextOverflowError if the query, or the query and one document, do not fit in the context; with
        `truncate`, such a document is cut, with a warning. Raises UsageError for an instruction if the model takes
        none.
        """
        if instruction and not self._template.instruction_text:
            raise UsageError(NO_INSTRUCTION)
        n_ctx, number = self._engine.n_ctx, 0
        empty = len(self._prompt(query, [""], instruction))
        if empty > n_ctx:
            raise ContextOverflowError(f"query: its prompt has {empty} tokens, more than the context length {n_ctx}")
        lengths = [len(self._encode(document)) for document in documents]
        of_document = len(self._encode(filled(self._template.document, index="100", document="")))
        while number < len(documents):
            end, total = number + 1, empty + lengths[number]
            while end < min(len(documents), number + MAX_DOCUMENTS):
                total += lengths[end] + of_document
                if total > n_ctx:
                    break
                end += 1
            ids = self._prompt(query, documents[number:end], instruction)
            while len(ids) > n_ctx and end > number + 1:  # tokens may join differently beside others
                end -= 1
                ids = self._prompt(query, documents[number:end], instruction)
            if len(ids) > n_ctx:
                note_length(number + 1, len(ids), n_ctx, truncate=truncate, of="tokens with the query")
                ids = self._cut(query, documents[number], instruction, ids)
            yield ListPrompt(token_ids(ids, self._engine.n_vocab), end - number)
            number = end

    def _cut(self, query: str, document: str, instruction: str, ids: list[int]) -> list[int]:
        """Return the prompt with one document, `ids`, cut so that it fits in the context."""
        tokens = self._tokenizer.encode(self._template.without_markers(document), add_special=False)
        kept = len(tokens)
        while len(ids) > self._engine.n_ctx:
            kept = max(0, kept - (len(ids) - self._engine.n_ctx))
            ids = self._prompt(query, [self._tokenizer.decode(tokens[:kept])], instruction)
        return ids

    def _prompt(self, query: str, documents: Sequence[str], instruction: str) -> list[int]:
        return self._encode(self._template.fill(query, documents, instruction))

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special=False, parse_special=True)

    def _vectors(self, prompt: ListPrompt) -> tuple[Floats, Floats]:
        """Return the vectors of the documents of a prompt, (documents, n), and that of its query, (n,)."""
        at = [np.flatnonzero(prompt.ids == marker) for marker in self._markers]
        if [len(each) for each in at] != [prompt.n_documents, 1] or at[0][-1] > at[1][0]:
            what = "has no marker after each document, and then one after the query"
            raise self._engine.file.error(RERANK_LIST_TEMPLATE, what)
        vectors = self._dense.apply(token_states(self._engine, prompt.ids, np.concatenate(at)))
        return vectors[:-1], vectors[-1]


def cosines(vectors: Floats, other: Floats) -> Floats:
    """Return the cosine similarity of each row of `vectors` and another vector: float32 (rows,)."""
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(other)
    result: Floats = (vectors @ other / np.maximum(lengths, TINY)).astype(np.float32)
    return result
