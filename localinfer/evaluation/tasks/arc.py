"""ARC: questions of science tests at school, easy or challenging (https://arxiv.org/abs/1803.05457).

Files are the JSON Lines of AI2 (ARC-Easy-Test.jsonl) or those of the dataset at Hugging Face.
"""

from pathlib import Path

from localinfer.evaluation.tasks.reading import Record, json_lines
from localinfer.evaluation.tasks.task import (
    Choice,
    ChoiceItem,
    ChoiceTask,
    logprob_per_character,
    logprob_per_token,
    total_logprob,
)


def read(path: Path) -> list[ChoiceItem]:
    """Return the items of a file. Raises LocalInferError."""
    return list(map(item_of_record, json_lines(path)))


def item_of_record(record: Record) -> ChoiceItem:
    if isinstance(record.values.get("question"), dict):  # AI2's files
        source = record.record("question")
        question, choices = source.text("stem"), source.records("choices")
        texts, labels = [each.text("text") for each in choices], [each.text("label") for each in choices]
    else:
        question, source = record.text("question"), record.record("choices")
        texts, labels = source.texts("text"), source.texts("label")
    key = record.text("answerKey")
    if key not in labels or len(labels) != len(texts):
        raise record.error("answerKey", f"must be one of {', '.join(labels)}")
    if not all(texts):
        raise record.error("choices", "one of them is empty")
    context = f"Question: {question}\nAnswer:"
    return ChoiceItem(
        choices=tuple(Choice(context, f" {text}", len(text)) for text in texts), correct=(labels.index(key),)
    )


TASK = ChoiceTask(
    title="ARC",
    read=read,
    metrics={"acc_norm": logprob_per_character, "acc_norm_tokens": logprob_per_token, "acc": total_logprob},
)
