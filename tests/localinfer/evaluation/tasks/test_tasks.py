"""Files of tasks, their prompts, and the scores of answers."""

import csv
import gzip
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest
from tiny import tiny_gemma3, tiny_llama

from localinfer import tokenizer
from localinfer.errors import LocalInferError, UsageError
from localinfer.evaluation.tasks import TASKS, choices, gsm8k, winogrande
from localinfer.evaluation.tasks.items import Selection, read_items
from localinfer.evaluation.tasks.results import Accuracy, ItemResult, accuracies, by_group
from localinfer.evaluation.tasks.selection import shuffled_by_draws, shuffled_by_swaps
from localinfer.evaluation.tasks.task import (
    Choice,
    ChoiceItem,
    ChoiceScore,
    GenerationItem,
    Item,
    logprob_per_character,
    logprob_per_token,
    total_logprob,
)
from localinfer.gguf.reader import open_gguf
from localinfer.runtime.sequence import common_prefix_length

IN_ORDER = Selection(shuffle=False, num_fewshot=0)
SWAG = {"activity_label": "Ice skating", "ctx_a": "[header] A man skates.", "ctx_b": "he", "label": "1",
        "endings": ["falls.", "turns  around. [title] Then he stops.", "sings.", "[step] eats."]}  # fmt: skip
GRANDE = {"sentence": "The cup did not fit into the case because _ was too big.", "option1": "the cup",
          "option2": "the case", "answer": "1"}  # fmt: skip
MATHS = {"question": "What is 2 + 1,000?", "answer": "It is 2 + 1,000 = <<2+1000=1002>>1,002.\n#### 1,002"}
ARC = {"question": "Which is a metal?", "answerKey": "B", "choices": {"text": ["wood", "iron"], "label": ["A", "B"]}}
AI2 = {"answerKey": "2", "question": {
    "stem": "Which is a metal?", "choices": [{"text": "wood", "label": "1"}, {"text": "iron", "label": "2"}]}}
MMLU = {"question": "2 + 2? ", "choices": ["1", "2", "3", "4"], "answer": 3, "subject": "high_school_maths"}
EVAL = {"prompt": "def one():\n", "entry_point": "one", "test": "def check(function):\n    assert function() == 1\n"}


def read(task: str, path: Path, selection: Selection = IN_ORDER) -> Sequence[Item]:
    return read_items(TASKS[task], [path], selection)


def write_lines(path: Path, *objects: object) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in objects), encoding="utf-8")
    return path


def write_csv(path: Path, *rows: Sequence[object]) -> Path:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    return path


def texts(item: Item) -> list[tuple[str, str]]:
    assert isinstance(item, ChoiceItem)
    return [(item.prefix + each.context, each.continuation) for each in item.choices]


# --- files and prompts ---


def test_hellaswag_as_in_lm_evaluation_harness(tmp_path: Path) -> None:
    [item] = read("hellaswag", write_lines(tmp_path / "val.jsonl", SWAG))
    endings = [" falls.", " turns around.. Then he stops.", " sings.", "  eats."]
    assert texts(item) == [("Ice skating: A man skates. He", each) for each in endings]


def test_hellaswag_of_llama_cpp(tmp_path: Path) -> None:
    path = tmp_path / "hellaswag.txt"
    path.write_text("Skating: he\n2\nfalls.\nturns.\nsings.\neats.\n" * 2, encoding="utf-8")
    items = read("hellaswag", path)
    assert len(items) == 2
    assert texts(items[0]) == [("Skating: he", f" {each}") for each in ("falls.", "turns.", "sings.", "eats.")]
    assert items[1].correct == (2,)  # type: ignore[attr-defined]


def test_winogrande(tmp_path: Path) -> None:
    [item] = read("winogrande", write_lines(tmp_path / "dev.jsonl", GRANDE))
    start = "The cup did not fit into the case because "
    assert texts(item) == [(f"{start}{each}", " was too big.") for each in ("the cup", "the case")]
    assert item.correct == (0,)  # type: ignore[attr-defined]
    row = [7, GRANDE["sentence"].replace("cup", 'cup, or "mug",'), "the cup", "the case", 2]
    [other] = read("winogrande", write_csv(tmp_path / "eval.csv", row))
    assert texts(other)[0][0] == 'The cup, or "mug", did not fit into the case because the cup'
    assert other.correct == (1,)  # type: ignore[attr-defined]


@pytest.mark.parametrize("record", [ARC, AI2])
def test_arc(record: dict[str, Any], tmp_path: Path) -> None:
    [item] = read("arc", write_lines(tmp_path / "ARC-Easy-Test.jsonl", record))
    assert texts(item) == [("Question: Which is a metal?\nAnswer:", f" {each}") for each in ("wood", "iron")]
    assert item.correct == (1,)  # type: ignore[attr-defined]


def test_mmlu(tmp_path: Path) -> None:
    row = ["2 + 2? ", 1, 2, 3, 4, "D"]
    for path in (
        write_lines(tmp_path / "test.jsonl", MMLU),
        write_csv(tmp_path / "high_school_maths_test.csv", row),
    ):
        [item] = read("mmlu", path)
        about = "The following are multiple choice questions (with answers) about high school maths.\n\n"
        context = f"{about}2 + 2?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:"
        assert texts(item) == [(context, f" {letter}") for letter in "ABCD"]
        assert (item.group, item.correct) == ("high_school_maths", (3,))  # type: ignore[attr-defined]


def binary(*items: tuple[str, Sequence[tuple[str, int]]]) -> bytes:
    """Return the file that llama-perplexity --multiple-choice reads."""

    def text(value: str) -> bytes:
        return pack("<I", len(value.encode())) + value.encode()

    def answers(given: Sequence[tuple[str, int]]) -> bytes:
        return pack("<I", len(given)) + b"".join(text(each) for each, _ in given) + b"".join(
            pack("<I", label) for _, label in given)

    encoded = [text(question) + answers(given) + answers([]) for question, given in items]
    return pack("<I", len(items)) + bytes(4 * len(items)) + b"".join(encoded)


def test_multiple_choice(tmp_path: Path) -> None:
    path = tmp_path / "questions.bin"
    path.write_bytes(binary(("Is it?", [("no", 0), ("Ja, größer", 1)]), ("Why?", [("so", 1), ("b", 1), ("c", 0)])))
    first, second = read("multiple-choice", path)
    assert texts(first) == [("Is it?", " no"), ("Is it?", " Ja, größer")]
    assert (first.correct, second.correct) == ((1,), (0, 1))  # type: ignore[attr-defined]


def test_gsm8k_few_shot_prompt(tmp_path: Path) -> None:
    examples = write_lines(tmp_path / "train.jsonl", MATHS, {"question": "1 + 1?", "answer": "#### 2"}, MATHS)
    path = write_lines(tmp_path / "test.jsonl", {"question": "3?", "answer": "#### 3"})
    [item] = read("gsm8k", path, Selection(num_fewshot=2, fewshot_files=[examples]))
    assert isinstance(item, GenerationItem)
    solved = f"Question: {MATHS['question']}\nAnswer: {MATHS['answer']}\n\nQuestion: 1 + 1?\nAnswer: #### 2\n\n"
    assert item.prefix + item.prompt == solved + "Question: 3?\nAnswer:"
    with pytest.raises(UsageError, match=r"the few-shot files have 3 examples, not 5; name more with --fewshot-file"):
        read("gsm8k", path, Selection(fewshot_files=[examples]))


def test_few_shot_examples_of_the_same_subject(tmp_path: Path) -> None:
    rows = {name: write_csv(tmp_path / f"{name}_dev.csv", [name, 1, 2, 3, 4, "A"]) for name in ("law", "art")}
    tests = [write_csv(tmp_path / f"{name}_test.csv", ["?", 5, 6, 7, 8, "B"]) for name in ("art", "law")]
    selection = Selection(shuffle=False, num_fewshot=1, fewshot_files=list(rows.values()))
    items = read_items(TASKS["mmlu"], tests, selection)
    for item, name in zip(items, ("art", "law"), strict=True):
        start = f"The following are multiple choice questions (with answers) about {name}.\n\n{name}\nA. 1\n"
        assert texts(item)[0][0].startswith(start)
        assert "Answer: A\n\n?\nA. 5" in texts(item)[0][0]
    with pytest.raises(UsageError, match="have 1 examples of art, not 2"):
        read_items(TASKS["mmlu"], tests, Selection(shuffle=False, num_fewshot=2, fewshot_files=list(rows.values())))


def test_humaneval_compressed(tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(EVAL).encode()))
    [item] = read("humaneval", path)
    task = TASKS["humaneval"]
    assert [task.score(item, code) for code in ("    return 1", "    return 2")] == [  # type: ignore[union-attr,arg-type]
        {"pass@1": True}, {"pass@1": False}]


BAD_FILES: dict[str, tuple[str, bytes, str]] = {
    "no file": ("arc", b"", r"bad: has no items"),
    "no JSON": ("arc", b"\n{", r"bad: line 2: is no JSON object"),
    "no object": ("gsm8k", b"[1]", r"bad: line 1: is no JSON object"),
    "deep": ("gsm8k", b"[" * 100_000, r"bad: line 1: is no JSON object"),
    "no UTF-8": ("arc", b'{"a": "\xff"}', r"bad: byte 7: is no UTF-8 text"),
    "Parquet": ("mmlu", b"PAR1\x15", r"bad: is a Parquet file, of which the rows are needed as JSON Lines"),
    "damaged gzip": ("humaneval", gzip.compress(b"{}")[:-9], r"bad: .*"),
    "missing field": ("gsm8k", b'{"question": "?"}', r"bad: line 1: answer: is missing"),
    "no text": ("gsm8k", b'{"question": 1, "answer": "#### 1"}', r"bad: line 1: question: must be a text"),
    "no number": ("gsm8k", b'{"question": "?", "answer": "one"}', r"answer: must end with #### and a number"),
    "label": ("hellaswag", json.dumps(SWAG | {"label": 4}).encode(), r"label: must be a number from 0 to 3"),
    "hidden label": ("hellaswag", json.dumps(SWAG | {"label": ""}).encode(), r"label: must be a number from 0 to 3"),
    "empty": ("hellaswag", b"\n", "bad: has no items"),
    "lines": ("hellaswag", b"a\n1\nb\n", r"bad: has 3 lines, not a multiple of 6: context"),
    "text label": ("hellaswag", b"a\nx\nb\nc\nd\ne\n", r"bad: line 2: label: must be a number from 0 to 3"),
    "empty ending": ("hellaswag", b"a\n1\nb\n\nd\ne\n", r"bad: line 2: the context or an ending is empty"),
    "no blank": ("winogrande", b"1,no blank,a,b,1\n", r"bad: line 1: sentence: has no _ with a text behind it"),
    "columns": ("winogrande", b"1,a _ b,a\n", r"bad: line 1: has 3 columns, not 5"),
    "answer": ("winogrande", b"1,a _ b,a,b,3\n", r"bad: line 1: answer: must be a number from 1 to 2"),
    "key": ("arc", json.dumps(ARC | {"answerKey": "E"}).encode(), r"answerKey: must be one of A, B"),
    "choices": ("mmlu", json.dumps(MMLU | {"choices": ["a"]}).encode(), r"choices: must be 4 texts"),
    "letter": ("mmlu", b"?,1,2,3,4,E\n", r"bad: line 1: answer: must be a number from 0 to 3"),
    "truncated": ("multiple-choice", binary(("a", [("b", 1)]))[:-6], r"bad: byte \d+: ends within an item"),
    "many items": ("multiple-choice", pack("<I", 2**32 - 1), r"bad: byte 4: ends within an item"),
    "many answers": ("multiple-choice", binary(("a", [("b", 1)] * 101)), r"has 101 answers; 100 are allowed"),
    "no answer": ("multiple-choice", binary(("a", [("b", 0)])), r"has an empty text or no correct answer"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(name: str, tmp_path: Path) -> None:
    task, content, message = BAD_FILES[name]
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(LocalInferError, match=message) as caught:
        read(task, path)
    assert "\n" not in str(caught.value)


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match=r"none\.jsonl: No such file or directory"):
        read("arc", tmp_path / "none.jsonl")


# --- selection ---


def test_the_order_is_that_of_llama_perplexity() -> None:
    """The numbers are those of its C++ code, compiled with GCC 12."""
    assert shuffled_by_draws(range(10_042))[:8] == [4187, 10013, 7233, 9363, 1, 1286, 3036, 10032]
    assert shuffled_by_swaps(range(1267))[:8] == [528, 1262, 911, 1178, 0, 161, 381, 1258]
    assert sorted(shuffled_by_draws(range(100), seed=5)) == sorted(shuffled_by_swaps(range(100))) == list(range(100))


def test_limit_and_seed(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "test.jsonl", *({"question": str(n), "answer": f"#### {n}"} for n in range(50)))

    def numbers(**keywords: Any) -> list[str]:
        items = read("gsm8k", path, Selection(num_fewshot=0, **keywords))
        return [item.reference["answer"] for item in items]  # type: ignore[attr-defined]

    assert numbers(limit=3, shuffle=False) == ["0", "1", "2"]
    assert numbers(limit=3) == numbers(limit=20)[:3] != ["0", "1", "2"]
    assert numbers(limit=3, seed=2) != numbers(limit=3)
    assert sorted(map(int, numbers())) == list(range(50))


# --- tokens of choices ---


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> tokenizer.Tokenizer:
    return tokenizer.from_gguf(open_gguf(tiny_llama(tmp_path_factory.mktemp("m") / "m.gguf")))


def encode_pair(words: tokenizer.Tokenizer, context: str, continuation: str) -> tuple[list[int], int]:
    return choices.encode_pair(words, context, continuation, lambda text: len(words.encode(text)))


def item(*pairs: tuple[str, str]) -> ChoiceItem:
    return ChoiceItem(choices=tuple(Choice(a, b, len(b)) for a, b in pairs), correct=(0,))


def test_a_pair_is_tokenized_together(words: tokenizer.Tokenizer) -> None:
    n_context = len(words.encode("the cat"))
    assert encode_pair(words, "the cat", " sat") == (words.encode("the cat sat"), n_context)
    assert encode_pair(words, "the cat  ", "sat") == (words.encode("the cat  sat"), n_context)


def test_a_text_without_a_context_begins_with_bos(words: tokenizer.Tokenizer, tmp_path: Path) -> None:
    ids, first = encode_pair(words, "", "sat")
    assert (ids[1:], first) == (words.encode("sat"), 1)
    with_bos = tokenizer.from_gguf(open_gguf(tiny_gemma3(tmp_path / "m.gguf")))
    assert encode_pair(with_bos, "", "sat") == (with_bos.encode("sat"), 1)


def test_scores_begin_where_choices_differ(words: tokenizer.Tokenizer) -> None:
    """Also where that is before the continuation, and at least one token is scored."""
    encoded = choices.encode_item(words, item(("a cat", " sat"), ("a dog", " sat")))
    assert encoded.n_shared == common_prefix_length(words.encode("a cat sat"), words.encode("a dog sat"))
    assert encoded.n_shared < min(encoded.continuations)
    assert [text.first for text in encoded.texts] == [encoded.n_shared] * 2
    same = choices.encode_item(words, item(("a", " b"), ("a", " b c")))
    assert same.n_shared == len(words.encode("a b")) - 1
    with pytest.raises(LocalInferError, match="has no tokens of its own"):
        choices.encode_item(words, item(("a", ""), ("a", " b")))


# --- metrics ---


def score(*logprobs: float, continuation: int = 0, shared: int = 0, characters: int = 1) -> ChoiceScore:
    return ChoiceScore(np.array(logprobs), continuation, shared, characters)


def test_metrics() -> None:
    scores = [score(-1.0, -2.0, -6.0, continuation=1, characters=4), score(-3.0, -3.0, shared=1, characters=3)]
    assert total_logprob(scores) == [-8.0, -6.0]
    assert logprob_per_character(scores) == [-2.0, -2.0]
    assert logprob_per_token(scores) == [-3.0, -3.0]


def test_winogrande_leaves_out_the_last_token() -> None:
    long = [score(-9.0, -1.0, -2.0, -3.0, continuation=1), score(-9.0, -1.0, -1.0, -1.0, -7.0, continuation=1)]
    assert winogrande.logprob_per_token(long) == [-1.5, -1.0]
    short = [score(-9.0, -1.0, -2.0, continuation=1), score(-4.0, continuation=0)]
    assert winogrande.logprob_per_token(short) == [-5.0, -4.0]


@pytest.mark.parametrize(
    ("output", "strict", "flexible"),
    [
        (" It is 2 + 1000.\n#### 1002", True, True), ("#### $1,002.", False, True), (" 1,002.", False, True),
        ("#### 1002\nThe 7 of us", True, False), ("#### -1002", False, False), ("", False, False),
    ],
)  # fmt: skip
def test_numbers_of_gsm8k(output: str, strict: bool, flexible: bool) -> None:
    record = GenerationItem(prompt="", reference={"answer": gsm8k.normalized(MATHS["answer"])})
    assert gsm8k.score(record, output) == {"strict-match": strict, "flexible-extract": flexible}


def test_confidence_intervals() -> None:
    """Of llama-perplexity ("40 35.00000000% [22.1345%, 50.4941%]") and of lm-evaluation-harness (0.375 +/- 0.0775)."""
    assert [round(100 * each, 4) for each in Accuracy(14, 40).interval] == [22.1345, 50.4941]
    assert round(Accuracy(15, 40).error, 4) == 0.0775
    assert math.isnan(Accuracy(1, 1).error)
    assert Accuracy(0, 3).interval[0] == 0
    assert Accuracy(3, 3).interval[1] == 1


def test_results_by_group() -> None:
    results = [ItemResult(group, {"acc": correct}, {}) for group, correct in (("b", True), ("a", False), ("b", False))]
    assert accuracies(["acc"], results) == {"acc": Accuracy(1, 3)}
    assert {name: len(own) for name, own in by_group(results).items()} == {"a": 1, "b": 2}
