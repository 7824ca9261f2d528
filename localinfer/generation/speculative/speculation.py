"""Which runs of an engine use speculative decoding, and with which drafters."""

from typing import TYPE_CHECKING

from localinfer.generation.pieces import Stats
from localinfer.options import Options, parse_speculation_types
from localinfer.runtime.sequence_engine import SequenceEngine

if TYPE_CHECKING:  # many runs do not need it
    from localinfer.generation.speculative.speculative_decoder import SpeculativeDecoder, SpeculativeRun


class Speculation:
    """The speculative decoding of an engine's runs. `draft` is the engine of a draft model."""

    def __init__(self, engine: SequenceEngine, draft: SequenceEngine | None) -> None:
        self._engine, self._draft = engine, draft
        self._decoder: SpeculativeDecoder | None = None  # created by the first run that uses it

    def new_run(self, options: Options, stats: Stats) -> "SpeculativeRun | None":
        """Return the speculative decoding of a run after the cached tokens, or None if the options or the model exclude
        it."""
        has_drafter = {
            "ngram": True,
            "draft": self._draft is not None,
            "head": self._engine.compiled_graph.has_draft_head,
        }
        names = {name for name in parse_speculation_types(options.spec_type) if has_drafter.get(name)}
        if not names or not options.spec_draft_n_max or self._engine.sequence.modifiers.hooks:
            return None
        from localinfer.generation.speculative.speculative_decoder import SpeculativeDecoder

        self._decoder = self._decoder or SpeculativeDecoder(self._engine, self._draft)
        return self._decoder.new_run(self._engine.sequence.tokens, names, options, stats)
