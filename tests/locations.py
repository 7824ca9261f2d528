"""Paths of the checkout, the test data, the fake model, and the modules that tests share."""

import sys
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
TESTS = CHECKOUT / "tests"
DATA = TESTS / "data"
FAKE_CLI = [sys.executable, str(TESTS / "harness" / "fake_model.py")]  # the command line with a fake model

PYTEST = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
BENCHMARKS = [f"tests/benchmarks{folder}" for folder in ("", "/accuracy", "/checks", "/cycles", "/shapes")]
# For scripts: the module search path of pytest, behind the checkout.
PYTHONPATH = [str(CHECKOUT), *(str(CHECKOUT / folder) for folder in [*PYTEST["pythonpath"], *BENCHMARKS])]
