"""WinoGrande: which of two words fills the blank of a sentence (https://arxiv.org/abs/1907.10641).

What follows the blank is scored, behind the sentence with each of the words. Files are the dataset's JSON Lines, or the
CSV file of llama-perplexity --winogrande: number, sentence, word 1, word 2, answer (1 or 2).
"""

from collections.abc import Sequence
from pathlib import Path

from localinfer.evaluation.tasks.reading import Record, csv_rows, is_json_lines, json_lines
from localinfer.evaluation.tasks.task import Choice, ChoiceItem, ChoiceScore, ChoiceTask, total_logprob

BLANK = "_"
CSV_COLUMNS = ("number", "sentence", "option1", "option2", "answer")
MIN_REST_TOKENS = 4  # that differ between the choices: llama-perplexity then does not score the word


def read(path: Path) -> list[ChoiceItem]:
    """Return the items of a file. Raises LocalInferError."""
    if is_json_lines(path):
        return list(map(item_of_record, json_lines(path)))
    rows = csv_rows(path, len(CSV_COLUMNS))
    return [item_of_record(Record(dict(zip(CSV_COLUMNS, row, strict=True)), where)) for where, row in rows]


def item_of_record(record: Record) -> ChoiceItem:
    before, blank, after = record.text("sentence").partition(BLANK)
    if not blank or not after.strip():
        raise record.error("sentence", f"has no {BLANK} with a text behind it")
    options = [record.text("option1"), record.text("option2")]
    choices = [Choice(before + each, f" {after.strip()}", len(after.strip())) for each in options]
    return ChoiceItem(tuple(choices), (record.number("answer", 2, first=1),))


def logprob_per_token(scores: Sequence[ChoiceScore]) -> list[float]:
    """Return the mean ln p of what follows the word, as llama-perplexity --winogrande computes it.

    The last token, mostly a full stop, is left out if there are others. After a short text, the word is scored, too.
    """
    is_long = all(len(each.logprobs) - each.shared >= MIN_REST_TOKENS for each in scores)
    counted = [each.logprobs[each.continuation if is_long else each.shared :] for each in scores]
    return [float((each[:-1] if len(each) > 1 else each).mean()) for each in counted]


TASK = ChoiceTask(
    title="WinoGrande",
    read=read,
    metrics={"acc": total_logprob, "acc_norm_tokens": logprob_per_token},
)
