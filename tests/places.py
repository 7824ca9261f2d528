"""Where the checkout, the tests' data and their stand-in for a model are, for tests in whatever folder."""

import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
DATA = CHECKOUT / "tests" / "data"
TALKER = [sys.executable, str(CHECKOUT / "tests" / "talker.py")]  # localinfer, but for the model
