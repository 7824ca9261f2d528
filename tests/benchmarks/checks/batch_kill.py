"""Kills and resumes a batch job at random: every response must be in the output exactly once.

python tests/benchmarks/checks/batch_kill.py smollm2 --kills 20
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

from killed_batch import LINES, run_with_kills  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done = run_with_kills(arguments.model, Path(folder), arguments.kills, arguments.seed)
    kills = f"{arguments.kills} kills (seed {arguments.seed})"
    print(f"{kills}, {done} of {LINES} responses before the last run: each line exactly once")


if __name__ == "__main__":
    main()
