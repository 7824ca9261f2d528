"""Evaluation of tasks with given answers: tokens of the choices, their log-likelihoods, and the answers."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import cache
from typing import NamedTuple

from localinfer.errors import LocalInferError
from localinfer.evaluation.loglikelihood import ScoredText, TextScore, score_groups
from localinfer.evaluation.tasks.results import ItemResult
from localinfer.evaluation.tasks.task import ChoiceItem, ChoiceScore, ChoiceTask
from localinfer.runtime.sequence import common_prefix_length
from localinfer.runtime.sequence_engine import SequenceEngine
from localinfer.tokenizer import Tokenizer


class EncodedItem(NamedTuple):
    """The tokens of each choice of an item, the first one of each continuation, and the number of tokens that all
    choices begin with."""

    item: ChoiceItem
    texts: Sequence[ScoredText]
    continuations: Sequence[int]
    n_shared: int

    @property
    def n_tokens(self) -> int:
        """The number of tokens of the longest choice."""
        return max(len(text.ids) for text in self.texts)


def encode_item(tokenizer: Tokenizer, item: ChoiceItem) -> EncodedItem:
    """Return the tokens of an item. Raises LocalInferError for a choice without a token to score."""
    count = cache(lambda text: len(tokenizer.encode(text)))  # mostly, all choices have the same context
    pairs = [encode_pair(tokenizer, item.prefix + each.context, each.continuation, count) for each in item.choices]
    ids, continuations = [each for each, _ in pairs], [first for _, first in pairs]
    if any(first == len(each) for each, first in pairs):
        raise LocalInferError(f"{item.choices[0].continuation!r}: has no tokens of its own")
    shortest = min(map(len, ids)) - 1  # at least one token of each choice is scored
    n_shared = max(1, min(shortest, *(common_prefix_length(ids[0], each) for each in ids)))
    texts = [ScoredText(each, min(first, n_shared)) for each, first in pairs]
    return EncodedItem(item, texts, continuations, n_shared)


def encode_pair(
    tokenizer: Tokenizer, context: str, continuation: str, count: Callable[[str], int]
) -> tuple[list[int], int]:
    """Return the tokens of a context with its continuation, and the number of those of the context.

    `count` returns the number of tokens of a text.

    As in lm-evaluation-harness, both are tokenized together, and spaces at the end of the context belong to the
    continuation. A text begins with BOS if the model expects it; a text that would have no token before the
    continuation begins with BOS or EOS.
    """
    stripped = context.rstrip()
    continuation = context[len(stripped) :] + continuation
    ids, n_suffix = tokenizer.encode(stripped + continuation), len(tokenizer.eos_suffix)
    ids, n_context = ids[: len(ids) - n_suffix], count(stripped) - n_suffix
    if not n_context:
        first = tokenizer.eos if tokenizer.bos is None else tokenizer.bos
        ids, n_context = [first or 0, *ids], 1
    return ids, min(n_context, len(ids))


def evaluate(
    engine: SequenceEngine, task: ChoiceTask, items: Sequence[EncodedItem]
) -> Generator[tuple[int, ItemResult], None, None]:
    """Yield the number of each item and its result, as soon as it is known. Raises what `score_groups` raises."""
    with closing(score_groups(engine, (each.texts for each in items))) as groups:
        for number, scores in groups:
            yield number, result_of(task, items[number], scores)


def result_of(task: ChoiceTask, encoded: EncodedItem, scores: Sequence[TextScore]) -> ItemResult:
    """Return the result of an item, whose texts have these scores."""
    item, choices = encoded.item, list[ChoiceScore]()
    for choice, text, score, first in zip(item.choices, encoded.texts, scores, encoded.continuations, strict=True):
        shared = encoded.n_shared - text.first
        choices.append(ChoiceScore(score.logprobs, first - text.first, shared, choice.n_characters))
    values = {name: metric(choices) for name, metric in task.metrics.items()}
    answers = {name: each.index(max(each)) for name, each in values.items()}
    correct = {name: answer in item.correct for name, answer in answers.items()}
    return ItemResult(item.group, correct, {"scores": values, "answer": answers, "gold": list(item.correct)})
