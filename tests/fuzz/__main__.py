"""Mutants of tiny models, run between pages that kill whoever reads or writes past a tensor or a buffer.

    python tests/fuzz                         # 1000 mutants
    python tests/fuzz -n 100000 --first 5000  # those from seed 5000 on
    python tests/fuzz --only 5123             # one of them again
    python tests/fuzz --like qwen3            # of those models whose names have this: ARCHITECTURE-TYPE
    python tests/fuzz model.gguf ...          # of these models, too

A mutant is its seed: the model, the changes, the options and the tokens follow from it. It is refused in one line, or
it runs; a signal, a hang, much memory, or any error but the program's own is a finding, and is kept with its file.
Kernels are compiled here and inherited by every process; --kernels says how many more may be compiled for mutants whose
heads have other shapes than those of the models that they come from.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path[0] = str(Path(__file__).parents[1])
from places import PYTHONPATH  # noqa: E402

sys.path[:1] = PYTHONPATH

from fuzz.server import FINDINGS, Server  # noqa: E402
from fuzz.sources import Source, sources_in  # noqa: E402

REPORTED_SECONDS = 60


def main() -> None:
    """Parse the command line, run the mutants, print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("-n", "--mutants", type=int, default=1000, help="default: 1000")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="default: 0")
    parser.add_argument("--only", type=int, metavar="SEED", help="one mutant")
    parser.add_argument("--like", default="", metavar="TEXT", help="which of the tiny models; default: all")
    parser.add_argument("--kernels", type=int, default=200, help="more kernels that may be compiled; default: 200")
    parser.add_argument("--findings", type=Path, default=Path("findings"), help="default: ./findings")
    arguments = parser.parse_args()
    only, first = arguments.only, arguments.first
    seeds = range(first, first + arguments.mutants) if only is None else range(only, only + 1)
    with TemporaryDirectory() as folder:
        sources = [*sources_in(Path(folder), arguments.like), *(Source(path, {}) for path in arguments.models)]
        server = Server(sources, Path(folder), arguments.findings, arguments.kernels)
        counts: Counter[str] = Counter()
        began = reported = time.monotonic()
        for done, (seed, outcome) in enumerate(server.run(seeds), 1):
            counts[outcome.kind] += 1
            if outcome.is_finding or only is not None:
                print(f"seed {seed}: {outcome.kind}: {outcome.text}", flush=True)
            now = time.monotonic()
            if now - reported > REPORTED_SECONDS or done == len(seeds):
                reported = now
                ways = ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
                print(f"{done} of {len(seeds)}, {done / (now - began):.0f} a second: {ways}", flush=True)
    sys.exit(any(counts[kind] for kind in FINDINGS))


if __name__ == "__main__":
    main()
