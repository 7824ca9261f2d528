"""Tasks that models are evaluated on: their files, prompts and scores.

    TASKS["hellaswag"].read(Path("hellaswag_val.jsonl"))     # the items of a file
    choices.evaluate(engine, task, encoded_items)            # scores given answers
    TASKS["gsm8k"].score(item, output)                       # whether an answer that a model generated is correct

Each task has a module. The prompts are those of lm-evaluation-harness, and the files also those of llama-perplexity.
"""

from collections.abc import Mapping

from localinfer.evaluation.tasks import arc, gsm8k, hellaswag, humaneval, mmlu, multiple_choice, winogrande
from localinfer.evaluation.tasks.task import AnyTask

TASKS: Mapping[str, AnyTask] = {
    "hellaswag": hellaswag.TASK,
    "winogrande": winogrande.TASK,
    "arc": arc.TASK,
    "mmlu": mmlu.TASK,
    "multiple-choice": multiple_choice.TASK,
    "gsm8k": gsm8k.TASK,
    "humaneval": humaneval.TASK,
}
