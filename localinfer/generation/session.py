"""A generation session: the runs of one engine's sequence.

A prompt that begins with cached tokens reuses them; only the remaining tokens are evaluated. This module
depends on neither files nor chat templates nor messages.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from localinfer.errors import PromptTooLongError, UsageError
from localinfer.generation.pieces import Piece, Stats
from localinfer.generation.prefill import Prefill
from localinfer.generation.reasoning import ReasoningTracker
from localinfer.generation.run import CONTEXT_HINT, Run
from localinfer.generation.sampled_run import sampled_pieces
from localinfer.generation.speculative.speculation import Speculation
from localinfer.generation.token_selection import SamplerFunction, checked_sampler, model_sampler, with_logprobs
from localinfer.generation.unfit_options import reject_unfit_options
from localinfer.options import Options, scales_of_run
from localinfer.runtime.batch import Logits
from localinfer.runtime.encoder_tokens import prompt_tokens
from localinfer.runtime.sequence_engine import SequenceEngine
from localinfer.tokenizer import Tokenizer
from quant.jit.loader import Progress

if TYPE_CHECKING:
    from localinfer.generation.diffusion.denoiser import DiffusionStep
    from localinfer.generation.structured.constraint import Constraint
    from localinfer.prefix_store.store import PrefixStore
    from localinfer.runtime.media.media_embeddings import MediaEmbeddings


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
        self._engine, self._tokenizer, self.progress = engine, tokenizer, progress
        self._prefill, self._speculation = Prefill(engine, prefix_store), Speculation(engine, draft)
        self._current: Run | None = None
        self.on_diffusion_step: Callable[[DiffusionStep], None] | None = None  # called in place of `progress`

    def logits(self, tokens: Sequence[int]) -> Logits:
        """Return the logits after each token, float32 (len(tokens), n_vocab). Cached tokens are not reused."""
        with self._evaluation():
            self._engine.reset()
            return self._engine.logits(tokens)

    def logits_in_batches(self, tokens: Sequence[int]) -> Iterator[Logits]:
        """Yield what `logits` returns, several rows at a time. Each array is valid until the next one."""
        with self._evaluation():
            self._engine.reset()
            yield from self._engine.logits_in_batches(tokens)

    def evaluate(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens, as `logits` does, with the output layer for the last one only."""
        with self._evaluation():
            self._engine.reset()
            self._engine.evaluate(tokens)

    @contextmanager
    def _evaluation(self) -> Iterator[None]:
        """End the current run, and let the caller evaluate tokens that belong to none."""
        self._engine.runner.require_open()
        with self._engine.lock:
            self.end()
            media = self._engine.prompt_media.take()
            self._engine.use_adapters(self._engine.runner.default_scales)
            yield
            del media  # whose rows were needed until now

    def score(self, prompt: Sequence[int], ids: Sequence[int], n: int) -> list[Piece]:
        """Return the pieces of a given text, each with its log-probability and `n` alternatives. Rows of images and
        sounds have none.

        Cached tokens of the prompt are reused. Afterwards prompt and text are cached.
        """
        prompt = prompt_tokens(prompt, self._engine.compiled_graph.model_graph)
        reasoning, stream = ReasoningTracker(self._tokenizer, prompt), self._tokenizer.stream()
        pieces = []
        with self._evaluation():
            tokens = [*prompt, *ids[:-1]]  # the logits after the last token are not needed
            n_reused = self._engine.reuse_prefix(tokens, len(prompt) - 1)
            rows = chain.from_iterable(
                self._engine.logits_in_batches(tokens[n_reused:], skip=len(prompt) - 1 - n_reused)
            )
            for id, logits in zip(ids, rows, strict=True):
                if id < 0:
                    continue
                reasoning.accept(id)
                piece = with_logprobs(logits, id, n, self._tokenizer.token_text)
                pieces.append(replace(piece, text=stream.push(id), kind=reasoning.kind))
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
        self._engine.runner.require_open()
        media, prompt = self._engine.prompt_media.take(), prompt_tokens(prompt, self._engine.compiled_graph.model_graph)
        if not prompt:
            raise UsageError("the prompt is empty, and this model adds no BOS token")
        length = len(prompt) + len(answer_prefix)
        can_be_longer = self._engine.runner.uses_ring_buffer or self._engine.context.diffusion  # which checks it itself
        if length > self._engine.n_ctx and not can_be_longer:
            raise PromptTooLongError(length, self._engine.n_ctx, CONTEXT_HINT)
        reject_unfit_options(self._engine, options, sampler, constraint)
        if options.beams > 1 and (sampler or constraint or options.logprobs or answer_prefix):
            raise UsageError("beams: beam search excludes samplers, logprobs, constraints and answer prefixes")
        scales_of_run(options, self._engine.runner.default_scales)  # raises UsageError before the first piece
        run = Run(self._engine, self._tokenizer, prompt, answer_prefix, options, constraint, self.progress)
        pieces = self._pieces(run, checked_sampler(sampler, self._engine.n_vocab) if sampler else None)
        self.end()
        self._current = run
        pieces = with_media(pieces, media) if media else pieces
        return run.stats, closing_after(pieces, constraint) if constraint else pieces

    def end(self) -> None:
        """End the current run, if any."""
        run, self._current = self._current, None
        if run is not None:
            run.has_ended = True

    # --- pieces ---

    def _pieces(self, run: Run, sampler: SamplerFunction | None) -> Iterator[Piece]:
        """Return the pieces of a run. Raises what is wrong with its options before the first one."""
        if self._engine.context.diffusion:
            return self._checked_pieces(run, self._diffusion_pieces(run))
        if run.options.beams > 1:
            from localinfer.generation.beam_search_run import beam_search_pieces

            return self._checked_pieces(run, beam_search_pieces(run, self._prefill))

        def sample(options: Options, prefix: Sequence[int]) -> Iterator[Piece]:
            selector = run.selector(
                sampler or model_sampler(options, self._engine, self._tokenizer),
                runs_in_scheduler_thread=sampler is None,
            )
            return sampled_pieces(run, selector, prefix, self._prefill, self._speculation)

        tokens = sample(run.options, run.answer_prefix)
        if run.constraint and run.constraint.unmasked and not sampler:
            from localinfer.generation.repair import repaired_pieces

            return repaired_pieces(run, tokens, sample, partial(self._checked_pieces, run))
        return self._checked_pieces(run, tokens)

    def _checked_pieces(self, run: Run, tokens: Iterator[Piece]) -> Iterator[Piece]:
        """Yield the pieces with their texts, and then raise what is wrong with the text."""
        text = ""
        try:
            for piece in run.with_texts(tokens):
                text += piece.text
                yield piece
        finally:
            self._prefill.save_answer(run)
        run.check(text)

    def _diffusion_pieces(self, run: Run) -> Iterator[Piece]:
        """Return the pieces of a diffusion language model, without texts."""
        from localinfer.generation.diffusion.run import DiffusionRun

        def on_step(step: "DiffusionStep") -> None:
            run.require_current()
            if self.on_diffusion_step:
                self.on_diffusion_step(step)
            elif run.progress:
                run.progress("denoising", step.number, step.total)

        return DiffusionRun(run).pieces(on_step)


def closing_after(pieces: Iterator[Piece], constraint: "Constraint") -> Iterator[Piece]:
    with closing(constraint):
        yield from pieces


def with_media(pieces: Iterator[Piece], media: "Sequence[MediaEmbeddings]") -> Iterator[Piece]:
    """Yield the pieces, and refer to what the prompt has of images and sounds until then."""
    yield from pieces
    del media
