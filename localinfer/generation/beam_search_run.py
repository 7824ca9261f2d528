"""A run that searches for the most probable text with several hypotheses."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from localinfer.generation.beam_search import BeamSearch
from localinfer.generation.pieces import FinishReason, Piece
from localinfer.generation.prefill import Prefill
from localinfer.generation.run import Run, add_generate_seconds
from localinfer.generation.sampling.logprobs import log_probabilities
from localinfer.generation.token_selection import model_sampler


def beam_search_pieces(run: Run, prefill: Prefill) -> Iterator[Piece]:
    """Yield the pieces of the text that beam search finds, without their texts. At the end, set
    `run.stats.finish_reason`.

    The cache holds one hypothesis at a time. For another one the engine rewinds to the common prefix and evaluates the
    remaining tokens.
    """
    engine, prompt, options, stats = run.engine, run.prompt, run.options, run.stats
    penalties = replace(options, samplers="penalties;dry", sampler_seq="", mirostat=0)
    sampler = model_sampler(penalties, engine, run.tokenizer)
    n_free = max(1, engine.n_ctx - len(prompt) + 1)
    limit = min(n_free, options.n_predict) if options.n_predict > 0 else n_free
    with engine.lock:
        prefill.evaluate(run, prompt)

    def logprobs_after(ids: Sequence[int]) -> NDArray[np.floating]:
        with engine.lock, add_generate_seconds(stats):
            run.require_current()
            tokens = [*prompt, *ids]
            n_reused = engine.reuse_prefix(tokens, len(tokens) - 1)
            candidates = sampler.candidates(engine.evaluate(tokens[n_reused:]), engine.sequence.tokens)
            return log_probabilities(candidates.logits)

    search = BeamSearch(logprobs_after, options.beams, run.tokenizer.eog, limit)
    for id in search:
        stats.generated_tokens += 1
        yield Piece("", id)
    unfinished: FinishReason = "context" if limit == n_free else "length"
    stats.finish_reason = "stop" if search.is_best_finished else unfinished
