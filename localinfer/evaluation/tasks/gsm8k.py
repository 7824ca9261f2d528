"""GSM8K: word problems of arithmetic, whose solutions end with `#### ` and a number (https://arxiv.org/abs/2110.14168).

Files are the dataset's JSON Lines with `question` and `answer`. The metrics are those of lm-evaluation-harness:
`strict-match` takes the number behind `####`, `flexible-extract` the last number of the output.
"""

import re
from pathlib import Path

from localinfer.evaluation.tasks.reading import Record, json_lines
from localinfer.evaluation.tasks.task import GenerationItem, GenerationTask

STRICT, FLEXIBLE = re.compile(r"#### (-?[0-9.,]+)"), re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
IGNORED = [re.compile(pattern) for pattern in (",", r"\$", r"(?s).*#### ", r"\.$")]


def read(path: Path) -> list[GenerationItem]:
    """Return the items of a file. Raises LocalInferError."""
    return list(map(item_of_record, json_lines(path)))


def item_of_record(record: Record) -> GenerationItem:
    answer = record.text("answer")
    if not STRICT.search(answer):
        raise record.error("answer", "must end with #### and a number")
    prompt = f"Question: {record.text('question')}\nAnswer:"
    return GenerationItem(prompt, {"answer": normalized(answer)}, solution=f" {answer}")


def score(item: GenerationItem, output: str) -> dict[str, bool]:
    """Return whether the number of an output is correct."""
    first, numbers = STRICT.search(output), FLEXIBLE.findall(output)
    found = {"strict-match": first[1] if first else "", "flexible-extract": numbers[-1].strip() if numbers else ""}
    return {name: normalized(number) == item.reference["answer"] for name, number in found.items()}


def normalized(text: str) -> str:
    """Return the number at the end of a solution, without what does not change it."""
    for pattern in IGNORED:
        text = pattern.sub("", text)
    return text.lower()


TASK = GenerationTask(
    title="GSM8K",
    read=read,
    metrics=("flexible-extract", "strict-match"),
    score=score,
    until=("Question:", "</s>", "<|im_end|>"),
    max_tokens=256,
    num_fewshot=5,
)
