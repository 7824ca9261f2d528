"""Where the checkout, the tests' data, their stand-in for a model and the modules that they share are."""

import sys
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
TESTS = CHECKOUT / "tests"
DATA = TESTS / "data"
TALKER = [sys.executable, str(TESTS / "harness" / "talker.py")]  # localinfer, but for the model

PYTEST = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
BENCHMARKS = [f"tests/benchmarks{room}" for room in ("", "/accuracy", "/checks", "/shapes")]
# For scripts: where pytest finds modules, and the checkout itself in front.
PYTHONPATH = [str(CHECKOUT), *(str(CHECKOUT / folder) for folder in [*PYTEST["pythonpath"], *BENCHMARKS])]
