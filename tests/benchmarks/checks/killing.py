"""A batch job killed at random and started again: every line is there exactly once.

    python tests/benchmarks/checks/killing.py smollm2 --kills 20
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from places import PYTHONPATH

sys.path[:0] = PYTHONPATH

from killed import LINES, run  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done = run(asked.model, Path(folder), asked.kills, asked.seed)
    print(f"{asked.kills} kills (seed {asked.seed}), {done} of {LINES} answers at the last: each line exactly once")


if __name__ == "__main__":
    main()
