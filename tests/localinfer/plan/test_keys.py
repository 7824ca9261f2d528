"""What an architecture asks of a file's metadata: whatever the file has there, the answer is a number or one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import Field, tiny_llama

from localinfer.errors import LocalInferError
from localinfer.files.gguf import open_gguf
from localinfer.plan.keys import Keys

Question = Callable[[Keys, str], object]

QUESTIONS: dict[str, tuple[str, Question]] = {
    "a count": ("expert_count", lambda keys, key: keys.count(key)),
    "a count with a default": ("expert_count", lambda keys, key: keys.count(key, 0, least=0)),
    "a factor": ("logit_scale", lambda keys, key: keys.positive(key)),
    "a factor with a default": ("logit_scale", lambda keys, key: keys.positive(key, 1.0)),
    "a number": ("final_logit_softcapping", lambda keys, key: keys.number(key, 0.0)),
    "a switch": ("attention.causal", lambda keys, key: keys.flag(key, True)),
}
NONSENSE = {
    "an array": Field("ARRAY", [1.0, 2.0], "FLOAT32"),
    "texts": Field("ARRAY", ["1"], "STRING"),
    "a text that would be seen on a terminal": Field("STRING", "\x1b[31m1"),
}


def keys_of(path: Path, **metadata: Any) -> Keys:
    return Keys(open_gguf(tiny_llama(path, n_layer=1, **{f"llama.{key}": value for key, value in metadata.items()})))


@pytest.mark.parametrize("value", NONSENSE.values(), ids=NONSENSE)
@pytest.mark.parametrize("question", QUESTIONS)
def test_what_has_another_kind_is_refused_by_its_name(question: str, value: Field, tmp_path: Path) -> None:
    key, ask = QUESTIONS[question]
    with pytest.raises(LocalInferError) as caught:
        ask(keys_of(tmp_path / "m.gguf", **{key: value}), key)
    line = str(caught.value)
    assert f": llama.{key}: " in line
    assert line.isprintable()


def test_a_count_keeps_within_its_bounds(tmp_path: Path) -> None:
    keys = keys_of(tmp_path / "m.gguf", some_count=1)
    assert keys.count("some_count", most=1) == 1
    for bounds in ({"least": 2}, {"least": 0, "most": 0}):
        with pytest.raises(LocalInferError, match=r"some_count: is 1; it must be"):
            keys.count("some_count", **bounds)


@pytest.mark.parametrize("value", [1e15, -1e15])
def test_a_factor_that_a_float32_cannot_go_on_with_is_refused(value: float, tmp_path: Path) -> None:
    near, far = (keys_of(tmp_path / f"{n}.gguf", scale=Field("FLOAT64", n * value)) for n in (1, 2))
    assert near.number("scale", 0.0) == value
    with pytest.raises(LocalInferError, match=r"scale: is -?20+\.0; its magnitude must be at most 1e\+15$"):
        far.number("scale", 0.0)
