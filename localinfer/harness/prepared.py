"""Items that are ready to be evaluated: their tokens are known, and therefore the context that they need."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import cast

from localinfer.errors import ContextOverflowError
from localinfer.evaluation.loglikelihood import MIN_SEQUENCES
from localinfer.evaluation.tasks import choices
from localinfer.evaluation.tasks.results import ItemResult
from localinfer.evaluation.tasks.task import AnyTask, ChoiceItem, ChoiceTask, GenerationItem, GenerationTask, Item
from localinfer.harness.generation import Prompt, generate_outputs
from localinfer.model import Model
from localinfer.options import Layer, Options
from localinfer.tokenizer import Tokenizer

# Options for loading the model, where the user sets none. Given answers are scored with --precision high, as otherwise
# rounding decides between answers that are nearly as probable. Nothing is decoded then, so nothing is tuned.
CHOICE_DEFAULTS: Layer = {"parallel": 64, "precision": "high", "tune": False, "prefix_store": False}
GENERATION_DEFAULTS: Layer = {"parallel": 8, "prefix_store": False}


Results = Generator[tuple[int, ItemResult], None, None]  # the number of each item, and its result


class Prepared(ABC):
    """Items of a task that are ready to be evaluated. `n_tokens` is the length of the longest one with its answer."""

    n_tokens: int

    def options(self, options: Options) -> Options:
        """Return the options with a context that is large enough.

        Raises ContextOverflowError if the options set a smaller one.
        """
        if 0 < options.ctx_size < self.n_tokens:
            what = f"the longest item has {self.n_tokens} tokens with its answer"
            raise ContextOverflowError(f"--ctx-size: {what}, which do not fit into a context of {options.ctx_size}")
        return replace(options, ctx_size=options.ctx_size or self.n_tokens)

    @abstractmethod
    def run(self, model: Model) -> Results:
        """Yield the number of each item and its result, as soon as it is known. Closing the iterator ends the run."""


class PreparedChoices(Prepared):
    """Items of a task with given answers."""

    def __init__(self, task: ChoiceTask, items: Sequence[ChoiceItem], tokenizer: Tokenizer) -> None:
        self._task, self._items = task, [choices.encode_item(tokenizer, item) for item in items]
        self.n_tokens = max(item.n_tokens for item in self._items)

    def options(self, options: Options) -> Options:
        """Return the options with a context that also holds a batch, as the batch size is limited by it."""
        fitting = super().options(options)
        n_ctx = options.ctx_size or max(self.n_tokens, options.ubatch_size)
        return replace(fitting, ctx_size=n_ctx, parallel=max(options.parallel, MIN_SEQUENCES))

    def run(self, model: Model) -> Results:
        return choices.evaluate(model.engine, self._task, self._items)


class PreparedPrompts(Prepared):
    """Items of a task with generated answers. The model decodes greedily."""

    def __init__(self, task: GenerationTask, items: Sequence[GenerationItem], tokenizer: Tokenizer) -> None:
        self._task, self._items = task, items
        self._prompts = [
            Prompt(
                tokenizer.encode(item.prefix + item.prompt),
                {"n_predict": task.max_tokens, "temp": 0.0, "stop": list(task.until)},
            )
            for item in items
        ]
        self.n_tokens = max(len(each.ids) for each in self._prompts) + task.max_tokens

    def run(self, model: Model) -> Results:
        with closing(generate_outputs(model, self._prompts)) as outputs:
            for number, output in outputs:
                item = self._items[number]
                yield number, ItemResult(item.group, self._task.score(item, output), {"output": output})


def default_options(task: AnyTask) -> Layer:
    """Return the options for loading the model, where the user sets none."""
    return CHOICE_DEFAULTS if isinstance(task, ChoiceTask) else GENERATION_DEFAULTS


def prepare(task: AnyTask, items: Sequence[Item], tokenizer: Tokenizer) -> Prepared:
    """Return items of a task, at least one, with their tokens. Raises LocalInferError for an answer without tokens."""
    if isinstance(task, ChoiceTask):
        return PreparedChoices(task, cast("Sequence[ChoiceItem]", items), tokenizer)
    return PreparedPrompts(task, cast("Sequence[GenerationItem]", items), tokenizer)
