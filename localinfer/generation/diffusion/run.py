"""A run of a diffusion language model: its limits and its pieces."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter

from localinfer.errors import PromptTooLongError
from localinfer.generation.diffusion.denoiser import MASKED, Denoiser, DiffusionModel, DiffusionSettings, DiffusionStep
from localinfer.generation.pieces import Piece
from localinfer.generation.reasoning import ReasoningTracker
from localinfer.generation.run import Run
from localinfer.generation.token_selection import model_sampler
from localinfer.options import scales_of_run

DEFAULT_LENGTH = 128  # tokens of an answer without a limit
CONTEXT_HINT = "ctx_size (--ctx-size) sets a larger one"


class DiffusionRun:
    """A run that unmasks the tokens of its text in any order.

    Raises UnsupportedError for a file without mask token, UsageError for adapters that the model does not have,
    PromptTooLongError.
    """

    def __init__(self, run: Run) -> None:
        engine, options, stats = run.engine, run.options, run.stats
        self._run = run
        model = DiffusionModel.of(engine.file, engine.n_vocab)
        self._n_free = engine.n_ctx - stats.prompt_tokens
        if self._n_free < 1:
            raise PromptTooLongError(stats.prompt_tokens, engine.n_ctx, CONTEXT_HINT)
        self._scales = scales_of_run(options, engine.runner.default_scales)
        settings = DiffusionSettings.of(options, model)
        if settings.is_greedy:
            options = replace(options, temp=1.0, dynatemp_range=0.0)
        chain = model_sampler(options, engine, run.tokenizer, model.mask_id)
        self._denoiser = Denoiser(engine, model, settings, chain, stats.seed, run.selector(chain).piece)

    def pieces(self, on_step: Callable[[DiffusionStep], None]) -> Iterator[Piece]:
        """Yield the pieces of the answer, without their texts, as soon as all tokens before them are known; first those
        of the answer's prefix. At the end, set the `finish_reason` of the run's statistics.

        The answer ends before its first end-of-generation token. `on_step` is called with each step.
        """
        run, n_predict, stats = self._run, self._run.options.n_predict, self._run.stats
        wanted = n_predict if n_predict > 0 else DEFAULT_LENGTH
        reasoning, n_done = ReasoningTracker(run.tokenizer, run.prompt), 0
        for id in run.answer_prefix:
            reasoning.accept(id)
            yield Piece("", id, reasoning.kind)
        with run.engine.lock:
            run.engine.use_adapters(self._scales)
        for step in self._timed(self._denoiser.steps([*run.prompt, *run.answer_prefix], min(wanted, self._n_free))):
            stats.diffusion_steps += 1
            on_step(step)
            while n_done < len(step.ids) and (id := step.ids[n_done]) != MASKED:
                if id in run.tokenizer.eog:
                    stats.finish_reason = "stop"
                    return
                reasoning.accept(id)
                stats.generated_tokens += 1
                yield replace(self._denoiser.pieces[n_done], kind=reasoning.kind)
                n_done += 1
        stats.finish_reason = "context" if self._n_free < n_predict else "length"

    def _timed(self, steps: Iterator[DiffusionStep]) -> Iterator[DiffusionStep]:
        """Yield the steps, and add the time that they take to the statistics."""
        while True:
            start = perf_counter()
            step = next(steps, None)
            self._run.stats.generate_seconds += perf_counter() - start
            if step is None:
                return
            yield step
