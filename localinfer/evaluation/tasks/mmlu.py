"""MMLU: questions of 57 subjects with four answers (https://arxiv.org/abs/2009.03300).

Files are the CSV files of the dataset, one for each subject (anatomy_test.csv: question, four answers, letter), or JSON
Lines with `question`, `choices`, `answer` (0 to 3 or a letter) and `subject`. The letter of the answer is scored.
"""

import re
from pathlib import Path

from localinfer.evaluation.tasks.reading import Record, csv_rows, is_json_lines, json_lines
from localinfer.evaluation.tasks.task import Choice, ChoiceItem, ChoiceTask, total_logprob

LETTERS = "ABCD"
SPLIT = re.compile(r"_(test|val|dev|train)$")  # at the end of a file name


def read(path: Path) -> list[ChoiceItem]:
    """Return the items of a file. Raises LocalInferError."""
    if is_json_lines(path):
        return list(map(item_of_record, json_lines(path)))
    subject = SPLIT.sub("", path.name.partition(".")[0])
    items = []
    for where, (question, *choices, answer) in csv_rows(path, 2 + len(LETTERS)):
        values = {"question": question, "choices": choices, "answer": answer, "subject": subject}
        items.append(item_of_record(Record(values, where)))
    return items


def item_of_record(record: Record) -> ChoiceItem:
    choices, subject = record.texts("choices"), record.text("subject")
    if len(choices) != len(LETTERS):
        raise record.error("choices", f"must be {len(LETTERS)} texts")
    answer = record.values.get("answer")
    number = LETTERS.index(answer) if answer in tuple(LETTERS) else record.number("answer", len(LETTERS))
    lines = [f"{letter}. {text}" for letter, text in zip(LETTERS, choices, strict=True)]
    context = "\n".join([record.text("question").strip(), *lines, "Answer:"])
    about = subject.replace("_", " ")
    return ChoiceItem(
        tuple(Choice(context, f" {letter}", 1) for letter in LETTERS),
        (number,),
        group=subject,
        description=f"The following are multiple choice questions (with answers) about {about}.\n\n",
    )


TASK = ChoiceTask(
    title="MMLU",
    read=read,
    metrics={"acc": total_logprob},
)
