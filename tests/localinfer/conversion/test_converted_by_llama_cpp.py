"""Models in files of llama.cpp's converter compute what transformers computes. Needs torch and transformers, and the
sources of llama.cpp in the folder that the environment variable LLAMA_CPP names."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from locations import CHECKOUT

SCRIPT = CHECKOUT / "tests" / "benchmarks" / "checks" / "converted_by_llama_cpp.py"
SOURCE = os.environ.get("LLAMA_CPP", "")
CHEAP = ["llama3", "nemotron", "gemma2", "qwen3moe", "modern-bert", "modern-bert-scores", "starcoder2-window"]


@pytest.mark.skipif(not SOURCE, reason="LLAMA_CPP does not name the folder of llama.cpp's source")
@pytest.mark.skipif(not (find_spec("torch") and find_spec("transformers")), reason="needs torch and transformers")
def test_models_agree_with_transformers() -> None:
    completed = subprocess.run([sys.executable, SCRIPT, SOURCE, *CHEAP], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr[-2000:]
