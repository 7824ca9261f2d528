"""Items of tasks, and the two kinds of tasks: score given answers, or generate an answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.evaluation.tasks.selection import shuffled_by_swaps

DIGEST_BYTES = 12
EXAMPLE_END = "\n\n"  # between the examples of a few-shot prompt


class Choice(NamedTuple):
    """A possible answer: the text before it, the text that is scored, and the number of characters of the answer."""

    context: str
    continuation: str
    n_characters: int


@dataclass(frozen=True, kw_only=True)
class Item:
    """A question of a task. `description` and `examples` are the texts before it in a few-shot prompt."""

    group: str = ""  # such as the subject; results are also reported for each group
    description: str = ""
    examples: str = ""

    @property
    def prefix(self) -> str:
        return self.description + self.examples

    @property
    def solved(self) -> str:
        """The question with its answer: an example for a few-shot prompt."""
        raise NotImplementedError

    @property
    def digest(self) -> str:
        """A digest of everything in the item, which identifies it in an output file."""
        return blake2b(repr(self).encode(), digest_size=DIGEST_BYTES).hexdigest()


@dataclass(frozen=True)
class ChoiceItem(Item):
    """A question with possible answers; `correct` are the numbers of the correct ones."""

    choices: tuple[Choice, ...]
    correct: tuple[int, ...]

    @property
    def solved(self) -> str:
        choice = self.choices[self.correct[0]]
        return choice.context + choice.continuation


@dataclass(frozen=True)
class GenerationItem(Item):
    """A prompt, what the task needs to score an output, and the solution, if the file has one."""

    prompt: str
    reference: Mapping[str, str]
    solution: str = ""

    @property
    def solved(self) -> str:
        return self.prompt + self.solution


def with_examples(items: Sequence[Item], examples: Sequence[Item], count: int) -> list[Item]:
    """Return the items with the first `count` examples of their group before the question."""
    texts = {group: own_examples(group, examples, count) for group in {item.group for item in items}}
    return [replace(item, examples=texts[item.group]) for item in items]


def own_examples(group: str, examples: Sequence[Item], count: int) -> str:
    """Return the text of the first `count` examples of a group."""
    own = [each.solved for each in examples if each.group == group]
    return "".join(each + EXAMPLE_END for each in own[:count])


@dataclass(frozen=True, kw_only=True)
class Task:
    """What both kinds of tasks have.

    `read` returns the items of a file, and raises LocalInferError for a file that cannot be read, or is not one of the
    task. `shuffle` returns items in the order in which llama-perplexity selects them.
    """

    title: str
    read: Callable[[Path], Sequence[Item]]
    num_fewshot: int = 0  # by default
    shuffle: Callable[[Sequence[Item], int], list[Item]] = shuffled_by_swaps  # with a seed

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names of the metrics. Progress shows the first one."""
        raise NotImplementedError


# --- tasks with given answers ---


class ChoiceScore(NamedTuple):
    """The scores of a choice: ln p of its tokens from some token on, float64.

    `continuation` is the number of the first token of the continuation within `logprobs`, `shared` that of the first
    token behind those that all choices begin with.
    """

    logprobs: NDArray[np.float64]
    continuation: int
    shared: int
    n_characters: int


Metric = Callable[[Sequence[ChoiceScore]], list[float]]  # a value for each choice; the largest one is the answer


def total_logprob(scores: Sequence[ChoiceScore]) -> list[float]:
    """Return ln p of each continuation: `acc` of lm-evaluation-harness."""
    return [float(each.logprobs[each.continuation :].sum()) for each in scores]


def logprob_per_character(scores: Sequence[ChoiceScore]) -> list[float]:
    """Return ln p of each continuation per character of the answer: `acc_norm` of lm-evaluation-harness."""
    return [total / each.n_characters for total, each in zip(total_logprob(scores), scores, strict=True)]


def logprob_per_token(scores: Sequence[ChoiceScore]) -> list[float]:
    """Return the mean ln p of the tokens that differ between the choices: `acc_norm` of llama-perplexity."""
    return [float(each.logprobs[each.shared :].mean()) for each in scores]


@dataclass(frozen=True, kw_only=True)
class ChoiceTask(Task):
    """A task in which the model scores given answers."""

    metrics: Mapping[str, Metric]

    @property
    def metric_names(self) -> tuple[str, ...]:
        return tuple(self.metrics)


# --- tasks with generated answers ---


@dataclass(frozen=True, kw_only=True)
class GenerationTask(Task):
    """A task in which the model generates an answer: at most `max_tokens`, up to one of the texts `until`.

    `score` returns whether an output is correct by each of the `metrics`.
    """

    metrics: tuple[str, ...]
    score: Callable[[GenerationItem, str], dict[str, bool]]
    until: Sequence[str]
    max_tokens: int
    runs_code: bool = False  # whether `score` executes the output

    @property
    def metric_names(self) -> tuple[str, ...]:
        return self.metrics


AnyTask = ChoiceTask | GenerationTask
