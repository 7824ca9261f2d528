"""Drafts by a head of the model that predicts the token after the next one.

It is either part of the model or in a file of its own (`localinfer.graph.recording.draft_head`). It needs no text of
its own, since it uses the model's hidden states; evaluated on its own draft tokens, it drafts further ones.
"""

from time import perf_counter

from localinfer.generation.speculative.draft_length import DraftLengthModel
from localinfer.generation.speculative.draft_model import DraftModel
from localinfer.runtime.batch import Logits
from localinfer.runtime.compiled_graph import Floats
from localinfer.runtime.draft_head_runner import DraftBlockOutput, DraftHeadInput
from localinfer.runtime.sequence_engine import SequenceEngine

LOOKED_UP = (  # a few rows for each token
    "token_embd.weight", "markov_w1.weight", "selector_predecessor.weight", "selector_successor.weight",
)  # fmt: skip


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
        if not self._engine.compiled_graph.model_graph.draft_head_shares_keys:
            self._position += 1
        return self._head_logits(id)

    def _pause(self) -> None:
        """Do nothing: the same engine verifies the draft next."""

    def _head_logits(self, id: int) -> Logits:
        start = perf_counter()
        engine = self._engine
        logits, self._state = engine.draft_head.evaluate_one(
            DraftHeadInput(engine.sequence, id, self._position, self._state)
        )
        self._pass_seconds.update(perf_counter() - start)
        return logits


class DraftBlock(DraftHead):
    """A drafter with a head that drafts several tokens at once. Its confidence head, if it has one, estimates how
    probable it is that a draft token is accepted."""

    _block: DraftBlockOutput
    _confidence: float | None = None

    def choose_length(self, min_tokens: int, max_tokens: int) -> float:
        return super().choose_length(min_tokens, min(max_tokens, max_drafts(self._engine)))

    def _first_logits(self) -> Logits:
        start = perf_counter()
        engine, position = self._engine, len(self._ids) - 1
        self._block, self._position = engine.draft_head.evaluate_block(engine.sequence, self._ids[-1], position), 0
        count = len(self._block.logits)
        self._block_seconds = (perf_counter() - start) / count  # for each draft token
        self._max_tokens = min(self._max_tokens, count)
        return self._logits_after(self._ids[-1])

    def _next_logits(self, id: int) -> Logits:
        self._position += 1
        return self._logits_after(id)

    def _logits_after(self, id: int) -> Logits:
        """Return the logits of the next draft token of the block, given the token before it."""
        start = perf_counter()
        logits, self._confidence = self._engine.draft_head.draft_token_logits(self._block, self._position, id)
        self._pass_seconds.update(self._block_seconds + perf_counter() - start)
        return logits

    def _probability(self, logits: Logits, id: int) -> float:
        return super()._probability(logits, id) if self._confidence is None else self._confidence


def open_draft_head(engine: SequenceEngine, length_model: DraftLengthModel) -> DraftHead | None:
    """Return the drafter of the engine's draft head, if it has one."""
    graph = engine.compiled_graph
    if not graph.has_draft_head:
        return None
    return (DraftBlock if graph.model_graph.draft_block else DraftHead)(engine, length_model)


def max_drafts(engine: SequenceEngine) -> int:
    """Return the number of tokens that the engine's draft head drafts at once."""
    block = engine.compiled_graph.model_graph.draft_block
    return block.max_drafts if block else 1


def relative_head_cost(engine: SequenceEngine) -> float:
    """Return the weight bytes that one draft token reads, relative to those of one token of the model."""
    model_graph = engine.compiled_graph.model_graph
    assert model_graph.draft_head
    sizes, *head_sizes = ({name: each.nbytes for name, each in f.tensors.items()} for f in engine.compiled_graph.files)
    mtp_sizes = {name: size for name, size in sizes.items() if name.startswith(f"blk.{model_graph.block_count}.")}
    logits = model_graph.draft_head.logits
    output = next(product.weight for product in reversed(model_graph.graph.products) if product.y is logits)
    own = {**(head_sizes[0] if head_sizes else mtp_sizes), output.name: output.nbytes}
    looked_up = sum(own.get(name, 0) for name in LOOKED_UP if name != output.name)
    return (sum(own.values()) - looked_up) / max_drafts(engine) / (sum(sizes.values()) - sum(mtp_sizes.values()))
