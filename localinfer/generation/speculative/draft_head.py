"""Drafts by a head of the model that predicts the token after the next one.

It is either part of the model or in a file of its own (`localinfer.graph.recording.draft_head`). It needs no text of
its own, since it uses the model's hidden states; evaluated on its own draft tokens, it drafts further ones.
"""

from time import perf_counter

from localinfer.generation.speculative.draft_length import DraftLengthModel
from localinfer.generation.speculative.draft_model import DraftModel
from localinfer.runtime.batch import Logits
from localinfer.runtime.compiled_graph import Floats
from localinfer.runtime.sequence_engine import SequenceEngine

EMBEDDING = "token_embd.weight"


class DraftHead(DraftModel):
    """A drafter like `DraftModel` that uses the engine of the target model."""

    accepts_media = True

    def __init__(self, engine: SequenceEngine, length_model: DraftLengthModel) -> None:
        super().__init__(engine, length_model, engine.n_vocab, relative_head_cost(engine))
        self._position = 0  # position of the last evaluated token
        self._state: Floats | None = None  # the head's hidden state of that token

    def _first_logits(self) -> Logits:
        self._position, self._state = len(self._ids) - 1, None
        return self._head_logits(self._ids[-1])

    def _next_logits(self, id: int) -> Logits:
        if not self._engine.compiled_graph.draft_head_shares_keys:
            self._position += 1
        return self._head_logits(id)

    def _pause(self) -> None:
        """Do nothing: the same engine verifies the draft next."""

    def _head_logits(self, id: int) -> Logits:
        start = perf_counter()
        logits, self._state = self._engine.evaluate_draft_head(id, self._position, self._state)
        self._pass_seconds.update(perf_counter() - start)
        return logits


def relative_head_cost(engine: SequenceEngine) -> float:
    """Return the weight bytes that one draft token reads, relative to those of one token of the model."""
    model_graph = engine.compiled_graph.model_graph
    assert model_graph.draft_head
    sizes, *head_sizes = ({name: each.nbytes for name, each in f.tensors.items()} for f in engine.compiled_graph.files)
    mtp_sizes = {name: size for name, size in sizes.items() if name.startswith(f"blk.{model_graph.block_count}.")}
    logits = model_graph.draft_head.logits
    output = next(product.weight for product in reversed(model_graph.graph.products) if product.y is logits)
    own = {**(head_sizes[0] if head_sizes else mtp_sizes), output.name: output.nbytes}
    looked_up = own.get(EMBEDDING, 0) if output.name != EMBEDDING else 0
    return (sum(own.values()) - looked_up) / (sum(sizes.values()) - sum(mtp_sizes.values()))
