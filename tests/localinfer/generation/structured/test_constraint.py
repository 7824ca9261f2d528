"""Constraints of a run: the allowed tokens, the end, and incomplete output."""

import json
import subprocess
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from constraints import BYTES, ByteTokenizer
from tiny import Field, tiny_gemma3, tiny_llama

import localinfer
from localinfer import ConstraintError, IncompleteOutputError, LocalInferError, Model, UsageError
from localinfer.child_process import HAS_CPU_TIMER
from localinfer.errors import UnsupportedError
from localinfer.generation.structured import vocabulary, worker_process
from localinfer.generation.structured.constraint import Constraint
from localinfer.generation.structured.constraint_source import ConstraintSource, constraint_source
from localinfer.generation.structured.constraint_start import AfterMarker
from localinfer.generation.structured.vocabulary import Vocabulary
from localinfer.options import Options

LOGITS = np.zeros(257, np.float32)


def make_constraint(start_after: str = "", **options: object) -> Constraint:
    source = constraint_source(Options(**options))  # type: ignore[arg-type]
    return Constraint(source, BYTES, AfterMarker(start_after) if start_after else None)


def allowed(constraint: Constraint) -> bytes:
    return bytes(np.flatnonzero(constraint.mask_logits(LOGITS)[:256] == 0).tolist())


def accept_text(constraint: Constraint, text: str) -> None:
    for byte in text.encode():
        constraint.accept(byte)


# --- one constraint ---


def test_allowed_tokens() -> None:
    constraint = make_constraint(choice=("no", "yes", "yesterday"))
    assert allowed(constraint) == b"ny"
    accept_text(constraint, "yes")
    assert allowed(constraint) == b"t"
    assert constraint.mask_logits(LOGITS)[256] == 0  # the end token is allowed
    assert not constraint.is_complete
    accept_text(constraint, "terday")
    assert constraint.is_complete
    constraint.require_complete("yesterday", is_truncated=False)


def test_masking_keeps_allowed_logits() -> None:
    constraint = make_constraint(regex="a")
    logits = np.arange(257, dtype=np.float32)
    masked = constraint.mask_logits(logits)
    assert masked.dtype == np.float32
    assert masked[97] == 97
    assert np.isneginf(np.delete(masked, 97)).all()
    assert logits.tolist() == list(range(257))


def test_constraint_starts_after_the_reasoning() -> None:
    constraint = make_constraint(regex="[0-9]+", start_after="</think>")
    assert constraint.mask_logits(LOGITS) is LOGITS
    accept_text(constraint, "one </thin</think>")
    assert allowed(constraint) == b"0123456789"
    accept_text(constraint, "42")
    constraint.require_complete("one </thin</think>42", is_truncated=False)
    with pytest.raises(IncompleteOutputError):
        constraint.require_complete("one </thin</think>4", is_truncated=False)


@pytest.mark.parametrize(("text", "truncated", "problem"), [
    ('{"a": [1', True, "cut off, n_predict (--predict) sets the maximum number of tokens"),
    ('{"a": [1', False, "it ends too early"),
])  # fmt: skip
def test_incomplete_text(text: str, truncated: bool, problem: str) -> None:
    constraint = make_constraint(json_mode=True)
    accept_text(constraint, text)
    with pytest.raises(IncompleteOutputError) as error:
        constraint.require_complete(text, is_truncated=truncated)
    assert str(error.value) == f"the answer does not satisfy JSON: {problem}"
    assert error.value.exit_code == 1


def test_violating_token() -> None:
    constraint = make_constraint(regex="a")
    with pytest.raises(LocalInferError, match=r"^--regex: token 98 violates the constraint$"):
        constraint.accept(98)


@pytest.mark.parametrize("option", [{"regex": "a{99999999}"}, {"grammar": 'root ::= "a" root'}])
def test_too_complex_constraint(option: dict[str, str]) -> None:
    [name] = option
    constraint = make_constraint(**option)
    with pytest.raises(ConstraintError, match=rf"^--{name}: too complex: (lexer|parser) error: .*$"):
        accept_text(constraint, "a" * 99)


@pytest.mark.parametrize("grammar", ["root ::= root", "root ::= a\na ::= root"])
def test_grammar_that_matches_no_text_is_an_error(grammar: str) -> None:
    with pytest.raises(ConstraintError, match=r"^--grammar: no text matches$"):
        make_constraint(grammar=grammar)


def test_model_without_end_token() -> None:
    class Endless(ByteTokenizer):
        eog = frozenset()

    with pytest.raises(UnsupportedError, match="has no end-of-generation token"):
        Vocabulary(Endless(), 257)  # type: ignore[arg-type]


def test_more_logits_than_tokens() -> None:
    wide = Vocabulary(ByteTokenizer(), 300)  # type: ignore[arg-type]
    constraint = Constraint(constraint_source(Options(regex="[^b]")), wide)
    assert np.isneginf(constraint.mask_logits(np.zeros(300, np.float32))[257:]).all()


def test_reading_a_large_vocabulary_lets_other_threads_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Large(ByteTokenizer):
        n_vocab = 150_000

        def token_bytes(self, id: int, *, special: bool = False) -> bytes:
            assert id - pauses[-1] <= 1000  # tokens in a millisecond
            return id.to_bytes(4, "big")

    pauses = [0]
    monkeypatch.setattr(vocabulary, "sleep", lambda _: pauses.append(pauses[-1] + vocabulary.PART))
    _, text, lengths = Vocabulary(Large(), Large.n_vocab).frames  # type: ignore[arg-type]
    assert text == b"".join(id.to_bytes(4, "big") for id in range(Large.n_vocab))
    assert lengths == array("I", [4] * Large.n_vocab).tobytes()


# --- limits ---


CHAIN = {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}, {}]} for n in range(5000)} | {"5000": {}}


def test_schema_that_overflows_the_stack() -> None:
    with pytest.raises(ConstraintError, match=r"^JSON: too complex: it needs too much memory or stack$"):
        make_constraint(json_schema=json.dumps({"$ref": "#/$defs/0", "$defs": CHAIN}))
    assert allowed(make_constraint(choice=("a",))) == b"a"  # another worker


def test_waiting_can_be_stopped() -> None:
    """60,000 alternatives take minutes to analyse. The exception ends the worker."""
    source = ConstraintSource("grammar", "root ::= " + " | ".join(f'"{n}"' for n in range(60_000)), "--grammar")

    class Stopped(BaseException):
        pass

    def stop() -> None:
        raise Stopped

    with pytest.raises(Stopped):
        Constraint(source, BYTES, on_wait=stop)


@pytest.mark.skipif(not HAS_CPU_TIMER, reason="this system has no timer for CPU time")
def test_cpu_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = "from localinfer.generation.structured import worker; worker.SECONDS[worker.COMPILE] = 0.3; worker.main()"
    monkeypatch.setattr(worker_process, "CODE", limited)
    vocabulary = Vocabulary(ByteTokenizer(), 257)  # type: ignore[arg-type]
    source = ConstraintSource("grammar", "root ::= " + " | ".join(f'"{n}"' for n in range(60_000)), "--grammar")
    with pytest.raises(ConstraintError, match=r"^--grammar: too complex: it took too long$"):
        Constraint(source, vocabulary)


@pytest.mark.skipif(not HAS_CPU_TIMER, reason="this system has no timer for CPU time")
def test_pattern_that_python_never_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of an answer with such a pattern holds the GIL, but not of this process."""
    limited = "from localinfer.generation.structured import worker; worker.SECONDS[worker.CHECK] = 0.3; worker.main()"
    monkeypatch.setattr(worker_process, "CODE", limited)
    vocabulary = Vocabulary(ByteTokenizer(), 257)  # type: ignore[arg-type]
    schema = {"type": "string", "not": {"pattern": "^(a+)+$"}}
    constraint = Constraint(ConstraintSource("json_schema", json.dumps(schema), "--json-schema"), vocabulary)
    text = json.dumps("a" * 40 + "b")
    accept_text(constraint, text)
    with pytest.raises(ConstraintError, match=r"^JSON: too complex: it took too long$"):
        constraint.require_complete(text, is_truncated=False)


def test_workers_are_used_again() -> None:
    vocabulary = Vocabulary(ByteTokenizer(), 257)  # type: ignore[arg-type]
    source = ConstraintSource("regex", "ab", "--regex")
    workers = []
    for _ in range(2):
        constraint = Constraint(source, vocabulary)
        accept_text(constraint, "ab")
        workers.append(constraint._worker)
        constraint.close()
    assert workers[0] is workers[1]
    vocabulary.workers.close()
    assert not workers[0].is_idle()


# --- whole runs ---


@pytest.fixture(scope="module", params=[tiny_llama, tiny_gemma3])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path: Path = request.param(tmp_path_factory.mktemp("model") / "tiny.gguf")
    with localinfer.load(path, threads=2, ctx_size=256, seed=3, temp=2.0) as loaded:
        yield loaded


def answer(model: Model, **options: object) -> str:
    return model.generate("Hello and", **options).text


@pytest.mark.parametrize("seed", range(5))
def test_output_satisfies_the_constraint(model: Model, seed: int) -> None:
    result = model.generate("Hello and", choice=["yes", "no", "the other one"], seed=seed)
    assert result.text in ("yes", "no", "the other one")
    assert result.finish_reason == "stop"
    assert answer(model, regex="[a-c]{7}", seed=seed).strip("abc") == ""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 8},
              "of": {"enum": ["a", "b"]}}, "required": ["n", "of"], "additionalProperties": False}  # fmt: skip
    parsed = json.loads(answer(model, schema=schema, seed=seed))
    assert 3 <= parsed["n"] <= 8
    assert parsed["of"] in ("a", "b")


def test_incomplete_run_raises_after_its_last_piece(model: Model) -> None:
    run = model.stream("Hello", regex="a{50}", n_predict=3)
    assert len([next(run) for _ in range(3)]) == run.stats.generated_tokens
    with pytest.raises(IncompleteOutputError, match="cut off"):
        next(run)
    assert run.stats.finish_reason == "length"
    with pytest.raises(IncompleteOutputError, match="it ends too early"):
        answer(model, regex="a{50}", stop=["aaa"])


def test_custom_sampler_receives_masked_logits(model: Model) -> None:
    observed = []

    def last_allowed(logits: np.ndarray, ids: list[int]) -> int:
        observed.append(int((logits > -np.inf).sum()))
        return int(np.flatnonzero(logits > -np.inf)[-1])

    assert set(answer(model, regex="[ab]{3}", sampler=last_allowed)) <= {"a", "b"}
    assert max(observed) < 20
    with pytest.raises(LocalInferError, match=r"--regex: token \d+ violates the constraint"):
        answer(model, regex="[ab]{3}", sampler=lambda logits, ids: int(np.flatnonzero(np.isneginf(logits))[0]))


@pytest.mark.parametrize("end", ["<think>\n", ""])
def test_answer_after_reasoning_is_constrained(model: Model, end: str) -> None:
    """The chat template's prompt ends within the reasoning."""
    reasoning_ids = model.tokenize("well then</think>" if end else "", add_special=False)
    begin: list[int] = []

    def think_first(logits: np.ndarray, ids: list[int]) -> int:
        begin[:] = begin or [len(ids)]
        done = len(ids) - begin[0]
        return reasoning_ids[done] if done < len(reasoning_ids) else int(logits.argmax())

    result = model.chat([{"role": "user", "content": "Hello"}], choice=["yes", "no"], sampler=think_first,
                        chat_template="{{ messages[0].content }}" + end)  # fmt: skip
    assert result.text in ("yes", "no")
    assert result.reasoning == ("well then" if end else "")


def test_invalid_constraints_are_rejected_before_the_run(model: Model) -> None:
    with pytest.raises(ConstraintError, match="--json-schema: #: Unsatisfiable schema"):
        model.stream("Hello", schema={"not": {}})
    with pytest.raises(UsageError, match="mutually exclusive"):
        model.stream("Hello", json_mode=True, regex="a")
    with pytest.raises(UsageError, match="beams"):
        model.stream("Hello", json_mode=True, beams=2)


def test_run_constraint_overrides_the_model_constraint(tmp_path: Path) -> None:
    with localinfer.load(tiny_llama(tmp_path / "m.gguf"), ctx_size=128, json_mode=True, seed=1) as loaded:
        assert answer(loaded, choice=["yes"]) == "yes"
        assert answer(loaded, json_mode=False, n_predict=2)


def test_llguidance_is_not_imported(tmp_path: Path) -> None:
    """It runs in a child process only, because it can crash."""
    path = tiny_llama(tmp_path / "m.gguf")
    code = (
        f"import sys, localinfer; m = localinfer.load({str(path)!r}, ctx_size=64);"
        "list(m.stream('Hello', choice=['a'])); assert not {'llguidance', 'jsonschema'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_forced_text_in_a_vocabulary_with_a_space_prefix(tmp_path: Path) -> None:
    """The tokens of the forced text do not begin with the space that such vocabularies put in front of a text."""
    prefix = {"tokenizer.ggml.add_space_prefix": Field("BOOL", True)}
    with localinfer.load(tiny_gemma3(tmp_path / "prefix.gguf", **prefix)) as model:
        assert model.generate("Hello", regex="aaaaa", n_predict=9, seed=1).text == "aaaaa"
        assert model.generate("Hello", json_schema='{"const": "42"}', n_predict=9, seed=1).text == '"42"'
