"""`localinfer generate`: --prompt-cache with a model, and the statistics line."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_llama

from cli import __main__
from cli.generation.generate import as_object, statistics_line
from localinfer import GenerationResult, Stats
from localinfer.errors import LocalInferError

Run = Callable[..., Any]
LONG = "Hello and the other one then and there"


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs `generate --json` on a tiny model: the JSON object, and stderr."""
    model = tiny_llama(tmp_path / "m.gguf")

    def generate(prompt: str, *more: str) -> tuple[dict[str, Any], str]:
        words = f"generate {model} -t 1 -c 200 -n 3 --ignore-eos --temp 0 --json -q --no-stdin --prompt-cache"
        assert __main__.run([*words.split(), str(tmp_path / "cache"), "-p", prompt, *more]) == 0
        out, err = capsys.readouterr()
        return json.loads(out), err

    return generate


def test_second_run_evaluates_only_new_tokens(run: Run, tmp_path: Path) -> None:
    first, _ = run(LONG)
    again, err = run(LONG)
    assert again["tokens"] == first["tokens"]
    assert again["timings"]["reused_tokens"] == again["timings"]["prompt_tokens"] - 1
    assert err == ""
    before = (tmp_path / "cache").read_bytes()
    longer, _ = run(f"{LONG} and more", "--prompt-cache-ro")
    assert longer["timings"]["reused_tokens"] >= first["timings"]["prompt_tokens"] - 1
    assert (tmp_path / "cache").read_bytes() == before
    run(f"{LONG} and more")
    assert (tmp_path / "cache").read_bytes() != before


def test_prompt_cache_all(run: Run, tmp_path: Path) -> None:
    run(LONG)
    size = (tmp_path / "cache").stat().st_size
    run(LONG, "--prompt-cache-all")
    assert (tmp_path / "cache").stat().st_size > size


def test_damaged_cache_is_replaced(run: Run, tmp_path: Path) -> None:
    first, _ = run(LONG)
    whole = (tmp_path / "cache").read_bytes()
    (tmp_path / "cache").write_bytes(whole[:-1])
    again, err = run(LONG)
    assert (again["tokens"], again["timings"]["reused_tokens"]) == (first["tokens"], 0)
    assert err == f"warning: {tmp_path / 'cache'}: damaged; the file is ignored\n"
    assert (tmp_path / "cache").read_bytes() == whole


@pytest.mark.parametrize("more", [[], ["--prompt-cache-all"]])
@pytest.mark.parametrize("as_json", [True, False])
def test_a_cache_that_cannot_be_saved_does_not_cut_off_the_text(
    more: list[str], as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, *_: object) -> None:
        raise LocalInferError(f"{path.parent}: 9 bytes are needed, 0 are free")

    words = f"generate {tiny_llama(tmp_path / 'm.gguf')} {LONG} -t 1 -c 200 -n 3 --ignore-eos --temp 0 -q --no-stdin"
    words += " --json" if as_json else ""
    assert __main__.run(words.split()) == 0
    expected = capsys.readouterr().out
    monkeypatch.setattr("localinfer.runtime.snapshot.save", fail)
    assert __main__.run([*words.split(), "--prompt-cache", str(tmp_path / "cache"), *more]) == 1
    out, err = capsys.readouterr()
    assert (json.loads(out)["tokens"] == json.loads(expected)["tokens"]) if as_json else (out == expected)
    assert err == f"error: --prompt-cache: {tmp_path}: 9 bytes are needed, 0 are free\n"


def test_unrelated_file_is_kept(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text(LONG * 9)
    with pytest.raises(AssertionError):
        run(LONG)
    assert (tmp_path / "cache").read_text() == LONG * 9


def test_statistics_of_speculative_decoding() -> None:
    stats = Stats(generated_tokens=40, generate_seconds=2, drafted_tokens=36, accepted_tokens=27, speedup=3.456, seed=1)
    assert "[ 40 tokens, 20.0 t/s (draft tokens accepted: 27 of 36, 3.46x the speed) | " in statistics_line(stats)
    assert "(draft tokens accepted: 27 of 36, 0.50x the speed) | " in statistics_line(replace(stats, speedup=0.5))
    assert "(draft tokens accepted: 0 of 36) | " in statistics_line(replace(stats, accepted_tokens=0))
    line = as_object("m", GenerationResult.from_pieces([], stats))
    assert line.count('"drafted_tokens": 36, "accepted_tokens": 27, "speedup": 3.456') == 1


def test_answer_closed_at_its_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is valid, the exit code is 0, and a warning says that it is shortened."""
    schema = '{"type": "array", "items": {"type": "string"}, "minItems": 9}'
    words = f"{tiny_llama(tmp_path / 'm.gguf')} -t 1 -c 200 -n 60 --temp 1.5 --seed 1 -q --no-stdin".split()
    line = "warning: the answer was closed at the limit of 60 tokens: it is complete, but shortened\n"
    assert __main__.run(["generate", *words, "-p", LONG, "-j", schema]) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)) >= 9
    assert err == line
    assert __main__.run(["generate", *words, "-p", LONG, "-j", schema, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["finish_reason"] == "length"
    assert err == line
    assert __main__.run(["chat", *words, "-j", schema, "--chat-template", "chatml", LONG]) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)) >= 9
    assert err == line
    assert __main__.run(["generate", *words, "-p", LONG, "-j", schema, "--no-close-at-limit"]) == 1
    out, err = capsys.readouterr()
    assert err.startswith("error: the answer does not satisfy JSON: cut off")
    assert __main__.run(["generate", *words, "-p", LONG, "-j", schema, "-n", "5"]) == 1
