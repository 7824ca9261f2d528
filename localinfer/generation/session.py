"""A generation session: the runs of one engine's sequence.

A prompt that begins with cached tokens reuses them; only the remaining tokens are evaluated. This module
depends on neither files nor chat templates nor messages.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain, islice
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import ContextOverflowError, LocalInferError, PromptTooLongError, UsageError
from localinfer.generation.piece_chooser import PieceChooser, RunLimits
from localinfer.generation.pieces import FinishReason, Piece, Stats, StopStringFilter
from localinfer.generation.reasoning import ReasoningTracker
from localinfer.generation.sampling import SamplerChain, SequenceBreakers, resolve_seed
from localinfer.generation.sampling.logprobs import log_probabilities
from localinfer.generation.sampling_loop import SamplingLoop
from localinfer.generation.token_selection import SamplerFunction, TokenSelector, checked_sampler, with_logprobs
from localinfer.generation.unfit_options import reject_unfit_options
from localinfer.options import Options, parse_speculation_types, scales_of_run
from localinfer.runtime.batch_division import bidirectional_span
from localinfer.runtime.sequence_engine import SequenceEngine
from localinfer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from localinfer.generation.diffusion.denoiser import DiffusionStep
    from localinfer.generation.speculative.speculative_decoder import SpeculativeDecoder, SpeculativeRun
    from localinfer.generation.structured.constraint import Constraint
    from localinfer.prefix_store.store import PrefixStore
    from localinfer.runtime.media.media_embeddings import MediaEmbeddings

Progress = Callable[[str, int, int], None]  # (stage, done, total)
Logits = NDArray[np.float32]

ANSWER_HEADER_TOKENS = 8  # tokens with which a chat template begins an answer; later prompts may lack them
CONTEXT_HINT = "ctx_size (--ctx-size) sets a larger one, ctx_policy (--ctx-policy) ring overwrites the oldest tokens"


class GenerationSession:
    """Runs of one engine, one at a time."""

    def __init__(
        self,
        engine: SequenceEngine,
        tokenizer: Tokenizer,
        progress: Progress | None = None,
        draft: SequenceEngine | None = None,
        prefix_store: "PrefixStore | None" = None,
    ) -> None:
        """`draft` is the engine of a draft model; `prefix_store` has evaluated prompts of other programs."""
        self._engine = engine
        self._tokenizer = tokenizer
        self.progress = progress
        self._current: Stats | None = None  # statistics of the current run
        self.on_diffusion_step: Callable[[DiffusionStep], None] | None = None  # called in place of `progress`
        # The tokens of an encoder cannot be divided into pages.
        self._draft, self._prefix_store = draft, None if engine.is_encoder_decoder else prefix_store
        self._speculative_decoder: SpeculativeDecoder | None = None  # created by the first speculative run

    def logits(self, tokens: Sequence[int]) -> Logits:
        """Return the logits after each token, float32 (len(tokens), n_vocab). Cached tokens are not reused."""
        with self._empty_sequence():
            return self._engine.logits(tokens)

    def logits_in_batches(self, tokens: Sequence[int]) -> Iterator[Logits]:
        """Yield what `logits` returns, several rows at a time. Each array is valid until the next one."""
        with self._empty_sequence():
            yield from self._engine.logits_in_batches(tokens)

    def evaluate(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens, as `logits` does, with the output layer for the last one only."""
        with self._empty_sequence():
            self._engine.evaluate(tokens)

    @contextmanager
    def _empty_sequence(self) -> Iterator[None]:
        """Begin an evaluation that reuses no cached tokens."""
        self._engine.require_open()
        with self._engine.lock:
            self._current, media = None, self._engine.prompt_media.take()
            self._engine.use_adapters(self._engine.runner.default_scales)
            self._engine.reset()
            yield
            del media  # whose rows were needed until now

    def score(self, prompt: Sequence[int], ids: Sequence[int], n: int) -> list[Piece]:
        """Return the pieces of a given text, each with its log-probability and `n` alternatives. Rows of images and
        sounds have none.

        Cached tokens of the prompt are reused. Afterwards prompt and text are cached.
        """
        prompt = self._engine.prompt_tokens(prompt)
        reasoning, stream = ReasoningTracker(self._tokenizer, prompt), self._tokenizer.stream()
        pieces = []
        self._engine.require_open()
        with self._engine.lock:
            self._current, media = None, self._engine.prompt_media.take()
            tokens = [*prompt, *ids[:-1]]  # the logits after the last token are not needed
            self._engine.use_adapters(self._engine.runner.default_scales)
            n_reused = self._engine.reuse_prefix(tokens, len(prompt) - 1)
            rows = chain.from_iterable(
                self._engine.logits_in_batches(tokens[n_reused:], skip=len(prompt) - 1 - n_reused)
            )
            for id, logits in zip(ids, rows, strict=True):
                if id < 0:
                    continue
                reasoning.accept(id)
                piece = with_logprobs(logits, id, n, self._token_text)
                pieces.append(replace(piece, text=stream.push(id), kind=reasoning.kind))
            del media  # whose rows were needed until now
        pieces[-1] = replace(pieces[-1], text=pieces[-1].text + stream.flush())
        return pieces

    @property
    def tokens(self) -> list[int]:
        """The cached tokens."""
        return self._engine.sequence.tokens

    def run(
        self,
        prompt: Sequence[int],
        options: Options,
        sampler: SamplerFunction | None = None,
        constraint: "Constraint | None" = None,
        answer_prefix: Sequence[int] = (),
    ) -> tuple[Stats, Iterator[Piece]]:
        """Start a run, which ends the previous one. Return its statistics, which are updated, and an iterator of its
        pieces.

        `sampler` replaces the sampler chain of the options. `answer_prefix` are the first tokens of the text; they
        count as part of the prompt and are the first pieces.

        Raises UsageError for an empty prompt and ContextOverflowError for one that does not fit. The iterator raises
        ContextOverflowError after the last piece if the context is full and the policy is to stop, and
        IncompleteOutputError if the text ends before it satisfies the constraint, and InvalidOutputError if it
        violates a keyword of its JSON schema that a grammar cannot express.
        """
        self._engine.require_open()
        media, prompt = self._engine.prompt_media.take(), self._engine.prompt_tokens(prompt)
        if not prompt:
            raise UsageError("the prompt is empty, and this model adds no BOS token")
        length = len(prompt) + len(answer_prefix)
        can_be_longer = self._engine.runner.uses_ring_buffer or self._engine.is_diffusion  # which checks it itself
        if length > self._engine.n_ctx and not can_be_longer:
            raise PromptTooLongError(length, self._engine.n_ctx, CONTEXT_HINT)
        reject_unfit_options(self._engine, options, sampler, constraint)
        if options.beams > 1 and (sampler or constraint or options.logprobs or answer_prefix):
            raise UsageError("beams: beam search excludes samplers, logprobs, constraints and answer prefixes")
        scales_of_run(options, self._engine.runner.default_scales)  # raises UsageError before the first piece
        stats = Stats(prompt_tokens=length, seed=resolve_seed(options.seed))
        options = replace(options, seed=stats.seed)
        if self._engine.is_diffusion:
            tokens = self._diffusion_pieces(prompt, answer_prefix, options, stats)
        elif options.beams > 1:
            tokens = self._beam_search_pieces(prompt, options, stats)
        else:
            function = checked_sampler(sampler, self._engine.n_vocab) if sampler else None
            tokens = self._sampled_pieces(
                prompt, answer_prefix, options, stats, self._selector(options, constraint, function))
        self._current = stats
        with_texts = self._checked_pieces(tokens, options, stats, constraint)
        if constraint and constraint.unmasked and not sampler:
            with_texts = self._repaired_pieces(tokens, prompt, len(answer_prefix), options, stats, constraint)
        with_texts = with_media(with_texts, media) if media else with_texts
        return stats, closing_after(with_texts, constraint) if constraint else with_texts

    def _selector(
        self, options: Options, constraint: "Constraint | None", sampler: SamplerFunction | None = None
    ) -> TokenSelector:
        return TokenSelector(
            sampler or self.sampler(options), constraint, options.logprobs, self._token_text,
            runs_in_scheduler_thread=sampler is None)  # fmt: skip

    def end(self) -> None:
        """End the current run, if any."""
        self._current = None

    # --- pieces ---

    def _checked_pieces(
        self, tokens: Iterator[Piece], options: Options, stats: Stats, constraint: "Constraint | None"
    ) -> Iterator[Piece]:
        """Yield the pieces with their texts, and then raise what is wrong with the text."""
        text = ""
        try:
            for piece in self._add_texts(tokens, options, stats):
                text += piece.text
                yield piece
        finally:
            self._save_prefix(stats)
        if stats.finish_reason == "context":
            raise ContextOverflowError(
                f"the context is full: {stats.prompt_tokens} tokens of prompt and {stats.generated_tokens} of "
                f"text, it holds {self._engine.n_ctx}; {CONTEXT_HINT}"
            )
        if constraint is not None:
            constraint.require_complete(text, is_truncated=stats.finish_reason == "length")

    def _repaired_pieces(
        self, tokens: Iterator[Piece], prompt: Sequence[int], n_prefix: int, options: Options, stats: Stats,
        constraint: "Constraint",
    ) -> Iterator[Piece]:  # fmt: skip
        """Return the pieces of the first attempt that is valid. `tokens` are those of the first attempt, of which
        `n_prefix` were given.
        """
        from localinfer.generation.repair import options_of_attempt, repaired

        def attempt(number: int, kept: list[Piece]) -> Iterator[Piece]:
            if not number:
                yield from tokens
                return
            stats.generated_tokens, stats.finish_reason = len(kept) - n_prefix, "interrupted"
            stats.closed_at_limit = 0
            of_prompt = stats.reused_tokens, stats.prompt_seconds
            attempt_options = options_of_attempt(options, number)
            selector, prefix = self._selector(attempt_options, constraint), [piece.id for piece in kept]
            sampled = self._sampled_pieces(prompt, prefix, attempt_options, stats, selector)
            yield from kept
            for piece in islice(sampled, len(kept), None):
                stats.reused_tokens, stats.prompt_seconds = of_prompt
                yield piece

        def report() -> None:
            if self.progress:
                self.progress("constraint", 0, 0)

        def checked(tokens: Iterator[Piece]) -> Iterator[Piece]:
            return self._checked_pieces(tokens, options, stats, constraint)

        return repaired(attempt, checked, constraint, n_prefix, report)

    def _add_texts(self, tokens: Iterator[Piece], options: Options, stats: Stats) -> Iterator[Piece]:
        stop_filter, decoder = StopStringFilter(options.stop), self._tokenizer.stream()
        for piece in tokens:
            text = decoder.push(piece.id)
            yield from stop_filter.push(replace(piece, text=text), is_incomplete=decoder.has_pending_bytes)
            if stop_filter.found:
                stats.finish_reason, stats.stop_string = "stop", stop_filter.found
                return
        yield from stop_filter.flush(decoder.flush())

    def _sampled_pieces(
        self,
        prompt: Sequence[int],
        answer_prefix: Sequence[int],
        options: Options,
        stats: Stats,
        selector: TokenSelector,
    ) -> Iterator[Piece]:
        """Yield pieces without texts. At the end, set `stats.finish_reason`."""
        n_before = stats.generated_tokens  # by an earlier attempt
        limits = RunLimits.of(self._engine, options, stats.prompt_tokens)
        reasoning = ReasoningTracker(self._tokenizer, prompt, options.reasoning_budget)
        chooser = PieceChooser(
            selector, reasoning, self._tokenizer.eog, limits, n_before, closes_at_limit=options.close_at_limit
        )
        prefix_pieces = chooser.accept(answer_prefix)
        loop = SamplingLoop(
            self._engine, chooser.choose, chooser.is_last, lambda count: limits.remaining(n_before + count),
            is_synchronous=not selector.runs_in_scheduler_thread,
        )  # fmt: skip
        with self._engine.lock:
            logits = self._prefill([*prompt, *answer_prefix], stats, options)
            with add_generate_seconds(stats):
                loop.speculation = speculation = self._speculative_run(options, stats)
                pieces = [loop.first(logits)]
        yield from prefix_pieces  # after prefill, as its progress is shown before the text
        while True:
            piece = pieces.pop(0)
            if speculation is not None:
                speculation.count_piece(is_draft=bool(pieces))
            if piece.id in self._tokenizer.eog:
                break
            stats.generated_tokens += 1
            yield piece
            with self._engine.lock:
                self._check_current(stats)
                if pieces:
                    continue
                if selector.is_complete:
                    break
                if stats.generated_tokens == options.n_predict:
                    stats.finish_reason = "length"
                    return
                if not limits.remaining(stats.generated_tokens):
                    stats.finish_reason = "context"
                    return
                with add_generate_seconds(stats):
                    pieces = loop.next_pieces()
        stats.finish_reason = "length" if selector.is_closing else "stop"
        stats.closed_at_limit = limits.maximum or 0 if selector.is_closing else 0

    def _diffusion_pieces(
        self, prompt: Sequence[int], answer_prefix: Sequence[int], options: Options, stats: Stats
    ) -> Iterator[Piece]:
        """Return the pieces of a diffusion language model, without texts."""
        from localinfer.generation.diffusion.run import DiffusionRun

        run = DiffusionRun(self._engine, self._tokenizer, options, stats, self.sampler, self._selector(options, None))

        def on_step(step: "DiffusionStep") -> None:
            self._check_current(stats)
            if self.on_diffusion_step:
                self.on_diffusion_step(step)
            elif self.progress:
                self.progress("denoising", step.number, step.total)

        return run.pieces(prompt, answer_prefix, on_step)

    def _speculative_run(self, options: Options, stats: Stats) -> "SpeculativeRun | None":
        """Return the speculative decoding of a run, or None if the options or the model exclude it."""
        has_drafter = {
            "ngram": True,
            "draft": self._draft is not None,
            "head": self._engine.compiled_graph.has_draft_head,
        }
        names = {name for name in parse_speculation_types(options.spec_type) if has_drafter.get(name)}
        if not names or not options.spec_draft_n_max or self._engine.sequence.modifiers.hooks:
            return None
        from localinfer.generation.speculative.speculative_decoder import SpeculativeDecoder

        self._speculative_decoder = self._speculative_decoder or SpeculativeDecoder(self._engine, self._draft)
        return self._speculative_decoder.new_run(self.tokens, names, options, stats)

    def _beam_search_pieces(self, prompt: Sequence[int], options: Options, stats: Stats) -> Iterator[Piece]:
        """Yield the tokens of the text that beam search finds.

        The cache holds one hypothesis at a time. For another one the engine rewinds to the common prefix and evaluates
        the remaining tokens.
        """
        sampler = self.sampler(replace(options, samplers="penalties;dry", sampler_seq="", mirostat=0))
        n_free = max(1, self._engine.n_ctx - len(prompt) + 1)
        limit = min(n_free, options.n_predict) if options.n_predict > 0 else n_free
        with self._engine.lock:
            self._prefill(prompt, stats, options)

        def logprobs_after(ids: Sequence[int]) -> NDArray[np.floating]:
            with self._engine.lock:
                start = perf_counter()
                self._check_current(stats)
                tokens = [*prompt, *ids]
                n_reused = self._engine.reuse_prefix(tokens, len(tokens) - 1)
                candidates = sampler.candidates(self._engine.evaluate(tokens[n_reused:]), self.tokens)
                stats.generate_seconds += perf_counter() - start
                return log_probabilities(candidates.logits)

        from localinfer.generation.beam_search import BeamSearch

        search = BeamSearch(logprobs_after, options.beams, self._tokenizer.eog, limit)
        for id in search:
            stats.generated_tokens += 1
            yield Piece("", id)
        unfinished: FinishReason = "context" if limit == n_free else "length"
        stats.finish_reason = "stop" if search.is_best_finished else unfinished

    def sampler(self, options: Options, excluded_id: int | None = None) -> SamplerChain:
        """Return the sampler chain that the options describe, for the vocabulary of this model. It never chooses
        `excluded_id`."""
        n_ctx, tokenizer = self._engine.n_ctx, self._tokenizer
        options = replace(
            options,
            repeat_last_n=n_ctx if options.repeat_last_n < 0 else options.repeat_last_n,
            dry_penalty_last_n=n_ctx if options.dry_penalty_last_n < 0 else options.dry_penalty_last_n,
        )
        excluded = tokenizer.suppressed | tokenizer.eog if options.ignore_eos else tokenizer.suppressed
        excluded = excluded if excluded_id is None else excluded | {excluded_id}
        texts = () if "none" in options.dry_sequence_breaker else options.dry_sequence_breaker
        breakers = SequenceBreakers(
            texts, tokenizer.token_bytes, lambda text: tokenizer.encode(text, add_special=False)
        )
        return SamplerChain(options, self._engine.n_vocab, dict.fromkeys(excluded, -np.inf), breakers)

    def _token_text(self, id: int) -> str:
        return self._tokenizer.token_bytes(id, special=True).decode("utf-8", "replace")

    def _check_current(self, stats: Stats) -> None:
        self._engine.require_open()
        if self._current is not stats:
            raise LocalInferError("this run has ended: another one was started with the same model")

    # --- the cache ---

    def _prefill(self, prompt: Sequence[int], stats: Stats, options: Options) -> Logits:
        """Evaluate the prompt and return the logits after it. Reuse cached tokens, unless the options forbid it."""
        self._check_current(stats)
        start = perf_counter()
        engine, has_hooks = self._engine, self._engine.sequence.modifiers.hooks is not None
        store = self._prefix_store if options.cache_prompt and not has_hooks else None
        engine.use_adapters(scales_of_run(options, engine.runner.default_scales))
        stats.reused_tokens = engine.reuse_prefix(prompt, len(prompt) - 1 if options.cache_prompt else 0, self.progress)
        if store:
            stats.reused_tokens = store.restore(engine, prompt, stats.reused_tokens)
        engine.checkpoint()
        if store:
            for stop in store.state_positions(engine, stats.reused_tokens, len(prompt) - ANSWER_HEADER_TOKENS):
                end, _ = bidirectional_span(prompt, stop, engine.runner.media_table)  # which cannot be divided
                if end > engine.n_past:
                    engine.evaluate(prompt[engine.n_past : end], self._prompt_progress(stats))
                    store.save(engine)
        logits = engine.evaluate(
            prompt[engine.n_past :], self._prompt_progress(stats), rewindable_suffix=ANSWER_HEADER_TOKENS
        )
        stats.prompt_seconds = perf_counter() - start
        if store:
            store.save(engine, rewound=ANSWER_HEADER_TOKENS)
        return logits

    def _prompt_progress(self, stats: Stats) -> Progress | None:
        """Return the progress of evaluating the rest of a prompt, counted from its first token that was not reused."""
        progress, n_done = self.progress, self._engine.n_past - stats.reused_tokens
        total = stats.prompt_tokens - stats.reused_tokens
        return progress and (lambda stage, done, _: progress(stage, n_done + done, total))

    def _save_prefix(self, stats: Stats) -> None:
        """Save the tokens of a run that has ended, unless another one has begun."""
        if self._engine.sequence.modifiers.hooks:
            return
        if self._prefix_store and self._current is stats and self._engine.settle():
            with self._engine.lock:
                self._prefix_store.save(self._engine, after_answer=True)


def closing_after(pieces: Iterator[Piece], constraint: "Constraint") -> Iterator[Piece]:
    with closing(constraint):
        yield from pieces


def with_media(pieces: Iterator[Piece], media: "Sequence[MediaEmbeddings]") -> Iterator[Piece]:
    """Yield the pieces, and refer to what the prompt has of images and sounds until then."""
    yield from pieces
    del media


@contextmanager
def add_generate_seconds(stats: Stats) -> Iterator[None]:
    """Add the time within the context to `stats.generate_seconds`."""
    start = perf_counter()
    yield
    stats.generate_seconds += perf_counter() - start
