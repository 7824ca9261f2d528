"""Fuzzing of the GGUF loader and the runtime: mutants of tiny models run with guard pages around every buffer.

    python tests/fuzz                         # 1000 mutants
    python tests/fuzz -n 100000 --first 5000  # mutants from seed 5000 on
    python tests/fuzz --only 5123             # one mutant again
    python tests/fuzz --like qwen3            # only models whose name, ARCHITECTURE-TYPE, contains this
    python tests/fuzz model.gguf ...          # these models, too
    python tests/fuzz --files                 # sessions, checkpoints, manifests, batches, object files, ...
    python tests/fuzz --files --like Snapshot # snapshots; DraftHeads; ImageFile, SoundFile, VideoFile, ProjectorFile

A seed determines a mutant: the model, the mutations, the options and the tokens. A mutant must either be rejected with
a one-line error or run. A signal, a hang, excessive memory, or any exception other than LocalInferError is a finding,
which is saved with its file. This process compiles the kernels and all children inherit them. --kernels limits how many
more kernels are compiled for mutants whose attention heads have other shapes than the corpus.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path[0] = str(Path(__file__).parents[1])
from locations import PYTHONPATH  # noqa: E402

sys.path[:1] = PYTHONPATH

from fuzz.corpus import SeedModel, write_corpus  # noqa: E402
from fuzz.files import FileServer, make_targets  # noqa: E402
from fuzz.fork_server import FINDINGS, ForkServer, ModelServer  # noqa: E402

REPORTED_SECONDS = 60


def main() -> None:
    """Parse the command line, run the mutants and print the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("-n", "--mutants", type=int, default=1000, help="default: 1000")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="default: 0")
    parser.add_argument("--only", type=int, metavar="SEED", help="run one mutant")
    parser.add_argument("--like", default="", metavar="TEXT", help="only models whose names contain this; default: all")
    parser.add_argument("--files", action="store_true", help="mutants of other files than models: fuzz/files.py")
    parser.add_argument("--kernels", type=int, default=200, help="most additional kernels to compile; default: 200")
    parser.add_argument("--findings", type=Path, default=Path("findings"), help="default: ./findings")
    arguments = parser.parse_args()
    only, first = arguments.only, arguments.first
    seeds = range(first, first + arguments.mutants) if only is None else range(only, only + 1)
    with TemporaryDirectory() as folder:
        server = make_server(arguments, Path(folder))
        counts: Counter[str] = Counter()
        start = reported = time.monotonic()
        for done, (seed, outcome) in enumerate(server.run(seeds), 1):
            counts[outcome.kind] += 1
            if outcome.is_finding or only is not None:
                print(f"seed {seed}: {outcome.kind}: {outcome.text}", flush=True)
            now = time.monotonic()
            if now - reported > REPORTED_SECONDS or done == len(seeds):
                reported = now
                summary = ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
                print(f"{done} of {len(seeds)}, {done / (now - start):.0f}/s: {summary}", flush=True)
    sys.exit(any(counts[kind] for kind in FINDINGS))


def make_server(arguments: argparse.Namespace, folder: Path) -> ForkServer:
    """Return the server that the arguments describe."""
    if arguments.files:
        return FileServer(make_targets(folder, arguments.like), folder, arguments.findings, arguments.kernels)
    sources = [*write_corpus(folder, arguments.like), *(SeedModel(path, {}) for path in arguments.models)]
    return ModelServer(sources, folder, arguments.findings, arguments.kernels)


if __name__ == "__main__":
    main()
