"""HellaSwag: which of four endings continues a description of an activity (https://arxiv.org/abs/1905.07830).

Files are the dataset's JSON Lines (hellaswag_val.jsonl), whose prompts are those of lm-evaluation-harness, or the text
file of llama-perplexity --hellaswag: six lines for each item, which are the context, the number of the correct ending,
and the endings.
"""

import re
from pathlib import Path

from localinfer.errors import LocalInferError
from localinfer.evaluation.tasks.reading import Record, is_json_lines, json_lines, read_text, shown
from localinfer.evaluation.tasks.selection import shuffled_by_draws
from localinfer.evaluation.tasks.task import (
    Choice,
    ChoiceItem,
    ChoiceTask,
    logprob_per_character,
    logprob_per_token,
    total_logprob,
)

N_ENDINGS = 4
LINES_PER_ITEM = 2 + N_ENDINGS


def read(path: Path) -> list[ChoiceItem]:
    """Return the items of a file. Raises LocalInferError."""
    return list(map(item_of_record, json_lines(path))) if is_json_lines(path) else read_text_file(path)


def item_of_record(record: Record) -> ChoiceItem:
    """Return the item of an object of the dataset."""
    endings = [clean(each) for each in record.texts("endings")]
    context = f"{record.text('activity_label')}: {record.text('ctx_a')} {record.text('ctx_b').capitalize()}"
    return make_item(clean(context), endings, record.number("label", len(endings)), record.where)


def read_text_file(path: Path) -> list[ChoiceItem]:
    """Return the items of a file of llama-perplexity."""
    lines = read_text(path).removesuffix("\n").split("\n")
    if len(lines) % LINES_PER_ITEM:
        expected = f"not a multiple of {LINES_PER_ITEM}: context, number of the correct ending, {N_ENDINGS} endings"
        raise LocalInferError(f"{shown(path)}: has {len(lines)} lines, {expected}")
    items = []
    for first in range(0, len(lines), LINES_PER_ITEM):
        context, label, *endings = lines[first : first + LINES_PER_ITEM]
        where = f"{shown(path)}: line {first + 2}"
        number = Record({"label": label}, where).number("label", N_ENDINGS)
        items.append(make_item(context, endings, number, where))
    return items


def make_item(context: str, endings: list[str], label: int, where: str) -> ChoiceItem:
    if not context or not all(endings):
        raise LocalInferError(f"{where}: the context or an ending is empty")
    return ChoiceItem(tuple(Choice(context, f" {each}", len(each)) for each in endings), (label,))


def clean(text: str) -> str:
    """Return a text without the marks of WikiHow, as lm-evaluation-harness does it."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


TASK = ChoiceTask(
    title="HellaSwag",
    read=read,
    metrics={"acc_norm": logprob_per_character, "acc_norm_tokens": logprob_per_token, "acc": total_logprob},
    shuffle=shuffled_by_draws,
)
