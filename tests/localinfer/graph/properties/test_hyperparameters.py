"""Reading hyperparameters: whatever the metadata contains, the result is a valid number or a one-line error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import Field, tiny_llama

from localinfer.errors import LocalInferError
from localinfer.gguf.reader import open_gguf
from localinfer.graph.properties.hyperparameters import Hyperparameters

Question = Callable[[Hyperparameters, str], object]

QUESTIONS: dict[str, tuple[str, Question]] = {
    "a count": ("expert_count", lambda keys, key: keys.count(key)),
    "a count with a default": ("expert_count", lambda keys, key: keys.count(key, 0, minimum=0)),
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


def hparams_of(path: Path, **metadata: Any) -> Hyperparameters:
    return Hyperparameters(
        open_gguf(tiny_llama(path, n_layer=1, **{f"llama.{key}": value for key, value in metadata.items()}))
    )


@pytest.mark.parametrize("value", NONSENSE.values(), ids=NONSENSE)
@pytest.mark.parametrize("question", QUESTIONS)
def test_wrong_type_error_names_the_key(question: str, value: Field, tmp_path: Path) -> None:
    key, ask = QUESTIONS[question]
    with pytest.raises(LocalInferError) as caught:
        ask(hparams_of(tmp_path / "m.gguf", **{key: value}), key)
    line = str(caught.value)
    assert f": llama.{key}: " in line
    assert line.isprintable()


def test_count_out_of_bounds(tmp_path: Path) -> None:
    keys = hparams_of(tmp_path / "m.gguf", some_count=1)
    assert keys.count("some_count", maximum=1) == 1
    for bounds in ({"minimum": 2}, {"minimum": 0, "maximum": 0}):
        with pytest.raises(LocalInferError, match=r"some_count: is 1; it must be"):
            keys.count("some_count", **bounds)


@pytest.mark.parametrize("value", [1e15, -1e15])
def test_factor_that_overflows_float32(value: float, tmp_path: Path) -> None:
    near, far = (hparams_of(tmp_path / f"{n}.gguf", scale=Field("FLOAT64", n * value)) for n in (1, 2))
    assert near.number("scale", 0.0) == value
    with pytest.raises(LocalInferError, match=r"scale: is -?20+\.0; its magnitude must be at most 1e\+15$"):
        far.number("scale", 0.0)
