"""Runs the notebooks of the documentation, and stores their outputs in them.

    python tests/making/run_notebooks.py                      # all, with the models on this machine
    python tests/making/run_notebooks.py docs/notebooks/steer-a-model.ipynb

Run it after a change of a notebook or of what it shows. tests/test_notebooks.py runs them, too, and stores nothing.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "harness")]

from notebooks import NOTEBOOKS, executed  # noqa: E402


def main() -> None:
    import nbformat

    for path in map(Path, sys.argv[1:] or NOTEBOOKS):
        nbformat.write(executed(path), path)
        print(path.name, f"{path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
