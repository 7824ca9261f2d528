"""A script with every public call passes mypy in strict mode, without any expression of type Any."""

import importlib.util
import subprocess
import sys

import pytest
from locations import CHECKOUT

import localinfer

SCRIPT = CHECKOUT / "tests" / "typing" / "user_script.py"


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed (group lint)")
def test_a_user_script_is_fully_typed() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--disallow-any-expr", str(SCRIPT)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=CHECKOUT)
    assert result.returncode == 0, result.stdout


def test_the_script_calls_all_public_functions() -> None:
    text = SCRIPT.read_text()
    functions = [name for name in localinfer.__all__ if callable(getattr(localinfer, name)) and name.islower()]
    assert [name for name in functions if f"localinfer.{name}(" not in text] == []
    methods = [name for name in dir(localinfer.Model) if not name.startswith("_")]
    untested = {"close", "concurrent", "metadata", "parallel", "require_chat_template", "tensors"}
    assert [name for name in methods if f"model.{name}" not in text and name not in untested] == []
