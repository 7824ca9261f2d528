"""`localinfer generate`: --prompt-cache with a model, and what is told of a run."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_llama

from cli import __main__
from cli.generate import as_object, statistics
from localinfer import Stats

Run = Callable[..., Any]
LONG = "Hello and the other one then and there"


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """The answer's JSON object, and stderr; the files of cache and model are in one directory."""
    model = tiny_llama(tmp_path / "m.gguf")

    def generate(prompt: str, *more: str) -> tuple[dict[str, Any], str]:
        words = f"generate {model} -t 1 -c 200 -n 3 --ignore-eos --temp 0 --json -q --no-stdin --prompt-cache"
        assert __main__.run([*words.split(), str(tmp_path / "cache"), "-p", prompt, *more]) == 0
        out, err = capsys.readouterr()
        return json.loads(out), err

    return generate


def test_a_second_run_reads_what_is_new_alone(run: Run, tmp_path: Path) -> None:
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


def test_the_answer_is_kept_too(run: Run, tmp_path: Path) -> None:
    run(LONG)
    size = (tmp_path / "cache").stat().st_size
    run(LONG, "--prompt-cache-all")
    assert (tmp_path / "cache").stat().st_size > size


def test_a_damaged_one_is_replaced(run: Run, tmp_path: Path) -> None:
    first, _ = run(LONG)
    whole = (tmp_path / "cache").read_bytes()
    (tmp_path / "cache").write_bytes(whole[:-1])
    again, err = run(LONG)
    assert (again["tokens"], again["timings"]["reused_tokens"]) == (first["tokens"], 0)
    assert err == f"warning: {tmp_path / 'cache'}: damaged; it is left aside\n"
    assert (tmp_path / "cache").read_bytes() == whole


def test_another_file_stays(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text(LONG * 9)
    with pytest.raises(AssertionError):
        run(LONG)
    assert (tmp_path / "cache").read_text() == LONG * 9


def test_guesses_are_told_of() -> None:
    stats = Stats(generated_tokens=40, generate_seconds=2, drafted_tokens=36, accepted_tokens=27, gain=3.456, seed=1)
    assert "[ 40 tokens, 20.0 t/s (27 of 36 guesses true: 3.46x) | " in statistics(stats)
    assert "(0 of 36 guesses true) | " in statistics(replace(stats, accepted_tokens=0))
    assert as_object("m", [], stats).count('"drafted_tokens": 36, "accepted_tokens": 27, "gain": 3.456') == 1
