"""`localinfer lens` with a tiny model."""

import json
from pathlib import Path

import pytest
from tiny import tiny_llama

import localinfer
from cli.__main__ import dispatch
from cli.measure.lens import cell
from localinfer import UsageError

TEXT = "Hello and <b>the</b> other\none"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "llama.gguf")


def test_the_command_prints_the_lens(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_the_command_prints_probabilities_and_attention(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["lens", str(file), "-p", TEXT, "-c", "64", "-t", "1"]
    with localinfer.load(file, ctx_size=64, threads=1) as model:
        probabilities, attention = model.token_probabilities(TEXT, top=2), model.attention(TEXT)[1, 3]
    assert dispatch([*arguments, "--probabilities", "--json", "--top", "2"]) == 0
    tokens = json.loads(capsys.readouterr().out)["tokens"]
    assert [each["text"] for each in tokens] == probabilities.tokens
    assert [each["rank"] for each in tokens[1:]] == probabilities.ranks[1:].tolist()
    assert dispatch([*arguments, "--attention", "1:3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"] == attention.weights.tolist()
    for view, lines in (["--probabilities"], len(tokens) + 2), (["--attention", "1:3"], len(tokens) + 2):
        assert dispatch([*arguments, *view]) == 0
        out = capsys.readouterr().out
        assert out.count("\n") >= lines
        assert all(line.isprintable() for line in out.split("\n"))
        if view == ["--probabilities"]:
            assert f"'{cell(probabilities.text(1))}' {probabilities.predicted_probabilities[1, 0]:.1%}, '" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--attention", "1"], "--attention: must be LAYER:HEAD"),
        (["-p", ""], "the prompt has no tokens"),
        (["--attention", "1:0", "--probabilities"], "give one of them"),
        (["--attention", "1:99"], "layer 1: has no head 99"),
        (["--attention", "9:0"], "blk.9.attn_weights: the model has no such point"),
    ],
)
def test_wrong_views_are_errors(file: Path, flags: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        dispatch(["lens", str(file), *(flags if "-p" in flags else ["-p", TEXT, *flags]), "-c", "64", "-t", "1"])
