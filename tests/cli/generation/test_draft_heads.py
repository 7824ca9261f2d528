"""Draft heads on the command line: one that belongs to another model is refused."""

from pathlib import Path

import draft_head_models
import pytest

from cli import __main__


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gemma4-assistant", "drafts for a model of the architecture gemma4; the model's is llama"),
        ("dflash", "dflash.target_layers: has 3; the model has 2 layers"),
    ],
)
def test_head_of_another_model(name: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = draft_head_models.write_model_and_head("eagle3", tmp_path / "other").model
    head = draft_head_models.write_model_and_head(name, tmp_path).head
    assert __main__.run(["generate", str(model), "-md", str(head), "-p", "a", "-n", "2"]) == 1
    output, message = capsys.readouterr()
    assert (output, message.count("\n")) == ("", 1)
    assert problem in message
