"""`localinfer lens` with a tiny model."""

import json
from pathlib import Path

import pytest
from tiny import tiny_llama

import localinfer
from cli.__main__ import dispatch

TEXT = "Hello and <b>the</b> other\none"


def test_the_command_prints_the_lens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tiny_llama(tmp_path / "llama.gguf")
    arguments = ["lens", str(file), "-p", TEXT, "-c", "64", "-t", "1"]
    with localinfer.load(file, ctx_size=64, threads=1) as model:
        lens = model.lens(TEXT, top=2)
    assert dispatch([*arguments, "--json", "--top", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] == lens.tokens
    assert found["points"]["blk.1.resid_post"][1]["ids"] == lens.ids[2, 1].tolist()
    assert found["points"]["blk.1.resid_post"][1]["texts"][0] == lens.text(2, 1)
    assert dispatch(arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("tokens 0 to ")
    assert all(line.isprintable() for line in out.split("\n"))
    assert out.count("blk.1.resid_post") == out.count("token  ") >= 1
