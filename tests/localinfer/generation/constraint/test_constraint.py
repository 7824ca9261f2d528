"""A run that is held to a form: what is allowed, when it ends, what an end too early is."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from constraints import BYTES, ByteTokenizer
from tiny import tiny_gemma3, tiny_llama

import localinfer
from localinfer import BadForm, Incomplete, LocalInferError, Model, UsageError
from localinfer.errors import Unsupported
from localinfer.generation.constraint import Constraint, Vocabulary, form_of
from localinfer.options import Options

LOGITS = np.zeros(257, np.float32)


def constraint(behind: str = "", **options: object) -> Constraint:
    form = form_of(Options(**options))  # type: ignore[arg-type]
    return Constraint(form, BYTES, list(behind.encode()))


def allowed(held: Constraint) -> bytes:
    return bytes(np.flatnonzero(held.masked(LOGITS)[:256] == 0).tolist())


def say(held: Constraint, text: str) -> None:
    for byte in text.encode():
        held.accept(byte)


# --- one constraint ---


def test_what_is_allowed() -> None:
    held = constraint(choice=("no", "yes", "yesterday"))
    assert allowed(held) == b"ny"
    say(held, "yes")
    assert allowed(held) == b"t"
    assert held.masked(LOGITS)[256] == 0  # it may end here
    assert not held.is_complete
    say(held, "terday")
    assert held.is_complete
    held.require_whole("yesterday", cut_off=False)


def test_logits_stay_as_they_are() -> None:
    held = constraint(regex="a")
    logits = np.arange(257, dtype=np.float32)
    masked = held.masked(logits)
    assert masked.dtype == np.float32
    assert masked[97] == 97
    assert np.isneginf(np.delete(masked, 97)).all()
    assert logits.tolist() == list(range(257))


def test_it_begins_behind_the_reasoning() -> None:
    held = constraint(regex="[0-9]+", behind="</think>")
    assert held.masked(LOGITS) is LOGITS
    say(held, "one </thin</think>")
    assert allowed(held) == b"0123456789"
    say(held, "42")
    held.require_whole("one </thin</think>42", cut_off=False)
    with pytest.raises(Incomplete):
        held.require_whole("one </thin</think>4", cut_off=False)


@pytest.mark.parametrize(("text", "cut_off", "problem"), [
    ('{"a": [1', True, "it is cut off, --predict sets how many tokens it may have"),
    ('{"a": [1', False, "it ends too early"),
])  # fmt: skip
def test_a_text_that_is_not_whole(text: str, cut_off: bool, problem: str) -> None:
    held = constraint(json_mode=True)
    say(held, text)
    with pytest.raises(Incomplete) as error:
        held.require_whole(text, cut_off=cut_off)
    assert str(error.value) == f"the answer is not what JSON asks for: {problem}"
    assert error.value.exit_code == 1


def test_a_token_that_breaks_it() -> None:
    held = constraint(regex="a")
    with pytest.raises(LocalInferError, match=r"^--regex: token 98 breaks it$"):
        held.accept(98)


@pytest.mark.parametrize("asked", [{"regex": "a{99999999}"}, {"grammar": 'root ::= "a" root'}])
def test_one_that_takes_too_much(asked: dict[str, str]) -> None:
    [name] = asked
    held = constraint(**asked)
    with pytest.raises(BadForm, match=rf"^--{name}: too complex: (lexer|parser) error: .*$"):
        say(held, "a" * 99)


@pytest.mark.parametrize("grammar", ["root ::= root", "root ::= a\na ::= root"])
def test_a_grammar_without_a_text_ends_with_an_error(grammar: str) -> None:
    held = constraint(grammar=grammar)
    with pytest.raises(LocalInferError, match=r"^--grammar: no token of this model's vocabulary can go on here$"):
        held.masked(LOGITS)


def test_a_model_that_never_ends_cannot_be_held() -> None:
    class Endless(ByteTokenizer):
        eog = frozenset()

    with pytest.raises(Unsupported, match="no token that ends a text"):
        Vocabulary(Endless(), 257)  # type: ignore[arg-type]


def test_more_logits_than_tokens() -> None:
    wide = Vocabulary(ByteTokenizer(), 300)  # type: ignore[arg-type]
    held = Constraint(form_of(Options(regex="[^b]")), wide)
    assert np.isneginf(held.masked(np.zeros(300, np.float32))[257:]).all()


# --- whole runs ---


@pytest.fixture(scope="module", params=[tiny_llama, tiny_gemma3])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path: Path = request.param(tmp_path_factory.mktemp("model") / "tiny.gguf")
    with localinfer.load(path, threads=2, ctx_size=256, seed=3, temp=2.0) as loaded:
        yield loaded


def answer(model: Model, **options: object) -> str:
    return "".join(piece.text for piece in model.generate("Hello and", **options))


@pytest.mark.parametrize("seed", range(5))
def test_runs_end_by_themselves_with_what_was_asked_for(model: Model, seed: int) -> None:
    assert answer(model, choice=["yes", "no", "the other one"], seed=seed) in ("yes", "no", "the other one")
    assert model.stats.finish_reason == "stop"
    assert answer(model, regex="[a-c]{7}", seed=seed).strip("abc") == ""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 8},
              "of": {"enum": ["a", "b"]}}, "required": ["n", "of"], "additionalProperties": False}  # fmt: skip
    said = json.loads(answer(model, schema=schema, seed=seed))
    assert 3 <= said["n"] <= 8
    assert said["of"] in ("a", "b")
    assert model.stats.finish_reason == "stop"


def test_a_run_that_is_cut_off_says_so_after_its_last_piece(model: Model) -> None:
    run = model.generate("Hello", regex="a{50}", n_predict=3)
    assert len([next(run) for _ in range(3)]) == model.stats.generated_tokens
    with pytest.raises(Incomplete, match="it is cut off"):
        next(run)
    assert model.stats.finish_reason == "length"
    with pytest.raises(Incomplete, match="it ends too early"):
        answer(model, regex="a{50}", stop=["aaa"])


def test_a_sampler_of_one_s_own_sees_what_is_allowed(model: Model) -> None:
    seen = []

    def last_possible(logits: np.ndarray, ids: list[int]) -> int:
        seen.append(int((logits > -np.inf).sum()))
        return int(np.flatnonzero(logits > -np.inf)[-1])

    assert set(answer(model, regex="[ab]{3}", sampler=last_possible)) <= {"a", "b"}
    assert max(seen) < 20
    with pytest.raises(LocalInferError, match=r"--regex: token \d+ breaks it"):
        answer(model, regex="[ab]{3}", sampler=lambda logits, ids: int(np.flatnonzero(np.isneginf(logits))[0]))


@pytest.mark.parametrize("end", ["<think>\n", ""])
def test_an_answer_has_a_form_behind_its_reasoning(model: Model, end: str) -> None:
    """Where the template's prompt ends within one."""
    thoughts = model.tokenize("well then</think>" if end else "", add_special=False)
    begin: list[int] = []

    def think_first(logits: np.ndarray, ids: list[int]) -> int:
        begin[:] = begin or [len(ids)]
        said = len(ids) - begin[0]
        return thoughts[said] if said < len(thoughts) else int(logits.argmax())

    run = model.chat([{"role": "user", "content": "Hello"}], choice=["yes", "no"], sampler=think_first,
                     chat_template="{{ messages[0].content }}" + end)  # fmt: skip
    text = "".join(piece.text for piece in run)
    assert text.strip() in (("well then</think>yes", "well then</think>no") if end else ("yes", "no"))


def test_errors_come_before_anything_runs(model: Model) -> None:
    with pytest.raises(BadForm, match="--json-schema: #: Unimplemented keys"):
        model.generate("Hello", schema={"not": {}})
    with pytest.raises(UsageError, match="an answer has one form"):
        model.generate("Hello", json_mode=True, regex="a")
    with pytest.raises(UsageError, match="--beams"):
        model.generate("Hello", json_mode=True, beams=2)


def test_a_form_of_a_run_takes_the_place_of_the_model_s(tmp_path: Path) -> None:
    with localinfer.load(tiny_llama(tmp_path / "m.gguf"), ctx_size=128, json_mode=True, seed=1) as loaded:
        assert answer(loaded, choice=["yes"]) == "yes"
        assert answer(loaded, json_mode=False, n_predict=2)


def test_nothing_is_imported_where_no_form_is_asked_for(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    code = (
        f"import sys, localinfer; m = localinfer.load({str(path)!r}, ctx_size=64);"
        "list(m.generate('Hello', n_predict=2)); assert 'llguidance' not in sys.modules;"
        "list(m.generate('Hello', choice=['a'])); assert 'llguidance' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
