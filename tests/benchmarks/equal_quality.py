"""Decode speed at equal quality: the fastest file with the divergence of llama.cpp's Q4_K_M, and llama.cpp on that.

    python tests/benchmarks/equal_quality.py gemma3-270m qwen2.5-coder-1.5b
    python tests/benchmarks/equal_quality.py gemma3-270m --prepare     # only the files, on a busy machine

llama.cpp writes its Q4_K_M, with the importance matrix that our files get, too. Types for our file are chosen by
`localinfer.fit`: from the time that each type takes on this machine, and from the sensitivities of a lab. As these
predict divergences only roughly, the limit is changed until the divergence that is measured, on texts that are used for
nothing else, is at most llama.cpp's; `accuracy/prepared_model.py` describes the source and the texts. A file may not be
larger than llama.cpp's. Then both programs decode in turns, each its own file, and llama.cpp's file by both.

Prints a Markdown table. Target: decode at least 1.3 times as fast. Needs the dependency groups `test` and `bench`.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parents[1]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

from interleaved import EngineProcess, Setup, Workload, run_interleaved  # noqa: E402
from prepared_model import CALIBRATION_CHUNKS, PreparedModel  # noqa: E402
from quantizers import QUANTIZERS, Task, run_localinfer  # noqa: E402
from ratios import geometric_mean  # noqa: E402

from localinfer import paths  # noqa: E402
from localinfer.fit.choice import FitPoint, SpeedCurve  # noqa: E402
from localinfer.fit.decode_time import DecodeTime, Read, measure_decode_time  # noqa: E402
from localinfer.fit.measurements import make_base_plan  # noqa: E402
from localinfer.gguf.gguf_source import from_gguf  # noqa: E402
from localinfer.lab.frontier import SizeCurve  # noqa: E402
from localinfer.lab.lab_file import read_lab  # noqa: E402
from localinfer.quantization.budget import TYPES  # noqa: E402

MIB = 1 << 20
RECIPE = "Q4_K_M"
TARGET_RATIO = 1.3
START = 1.25  # of the predicted divergence of our file of the same recipe, which is better than llama.cpp's
SEARCH_STEPS = 5  # files that are written to find the limit
CLOSE = 0.03  # a divergence that is lower than llama.cpp's by less is accepted
DECODE = Workload(128, is_prefill=False)


@dataclass(frozen=True)
class Measured:
    """A file, and its measured divergence."""

    path: Path
    divergence: float

    @property
    def size(self) -> float:
        """The size in MiB."""
        return self.path.stat().st_size / MIB


class Contest:
    """The files of one model in the working folder, each of which is made when first needed."""

    def __init__(self, model: PreparedModel, lab: Path) -> None:
        self.model, self.lab = model, lab
        self.imatrix = model.calibration_files(CALIBRATION_CHUNKS)[1]

    def _cached(self, name: str, make: Callable[[Path], float]) -> Measured:
        """Return a file and its divergence, which `make` writes and measures unless they are there."""
        path = self.model.folder / f"{self.model.source.stem}-{name}.gguf"
        record = path.with_suffix(".json")
        if not (path.exists() and record.exists()):
            record.write_text(json.dumps(make(path)), encoding="utf-8")
        return Measured(path, json.loads(record.read_text(encoding="utf-8")))

    def _divergence(self, path: Path) -> float:
        return geometric_mean(self.model.divergence_evaluator(path))

    @property
    def reference(self) -> Measured:
        """The file of llama.cpp."""

        def make(path: Path) -> float:
            QUANTIZERS["llama.cpp+imatrix"].make(
                Task(self.model.source, path, RECIPE, self.imatrix, None, self.model.threads)
            )
            return self._divergence(path)

        return self._cached(f"llama.cpp-{RECIPE}", make)

    def decode_time(self) -> DecodeTime:
        """Return the time of a decode step. It is measured on a machine that should do nothing else."""
        path = self.model.folder / f"{self.model.source.stem}-rates.json"
        if not path.exists():
            found = measure_decode_time(
                from_gguf(self.model.source), TYPES, self.model.folder, threads=self.model.threads
            )
            content = {
                "reads": {name: asdict(read) for name, read in found.reads.items()},
                "rates": [[*key, rate] for key, rate in found.rates.items()], "rest": found.rest,
            }  # fmt: skip
            path.write_text(json.dumps(content), encoding="utf-8")
        content = json.loads(path.read_text(encoding="utf-8"))
        return DecodeTime(
            {name: Read(**read) for name, read in content["reads"].items()},
            {(kind, columns): rate for kind, columns, rate in content["rates"]}, content["rest"],
        )  # fmt: skip

    @property
    def ours(self) -> Measured:
        """The fastest file that is neither worse nor larger than llama.cpp's."""
        return self._cached("equal", self._search)

    def _search(self, path: Path) -> float:
        """Write the file, and return its divergence."""
        plan = make_base_plan(from_gguf(self.model.source), self.imatrix)
        curve = SpeedCurve(SizeCurve(plan, read_lab(self.lab).divergences), self.decode_time())
        reference, size = self.reference, self.reference.path.stat().st_size
        assert curve.reference
        limit, best = START * curve.reference.divergence, 0.0
        for _ in range(SEARCH_STEPS):
            point = curve.fastest(limit, size)
            if point is None:
                break
            found = self._write(path.with_suffix(".part"), point)
            print(f"  limit {limit:.4f}: {point.size / MIB:.1f} MiB, {found:.4f}", file=sys.stderr, flush=True)
            if found <= reference.divergence and found > best:
                best = found
                path.with_suffix(".part").replace(path)
                if found > (1 - CLOSE) * reference.divergence:
                    break
            limit *= exp(0.9 * log((1 - CLOSE / 2) * reference.divergence / found))
        path.with_suffix(".part").unlink(missing_ok=True)
        if not best:
            raise RuntimeError(f"no file is as good as {RECIPE}")
        return best

    def _write(self, path: Path, point: FitPoint) -> float:
        """Write a file of these types, and return its divergence."""
        recipe = path.with_suffix(".recipe.json")
        recipe.write_text(json.dumps({"types": dict(point.types)}), encoding="utf-8")
        run_localinfer("quantize", self.model.source, path, "--recipe", recipe, "--imatrix", self.imatrix, "--force")
        recipe.unlink()
        return self._divergence(path)

    def row(self, repetitions: int) -> str:
        """Decode in turns, and return a row of the table."""
        ours, reference, threads = self.ours, self.reference, self.model.threads
        setups = [
            Setup("localinfer", ours.path, threads, 512), Setup("llama.cpp", reference.path, threads, 512),
            Setup("localinfer", reference.path, threads, 512),
        ]  # fmt: skip
        with EngineProcess(setups[0]) as a, EngineProcess(setups[1]) as b, EngineProcess(setups[2]) as c:
            run_interleaved(a, b, DECODE, 1)
            result = run_interleaved(a, b, DECODE, repetitions)
            same_file = run_interleaved(c, b, DECODE, repetitions).ratio
        spread = f"{min(result.ratios):.2f} to {max(result.ratios):.2f}"
        return (
            f"| {self.model.name} | {reference.size:.1f} : {ours.size:.1f} | {reference.divergence:.4f} : "
            f"{ours.divergence:.4f} | {median(result.theirs):.1f} : {median(result.ours):.1f} | "
            f"**{result.ratio:.2f}** | {spread} | {same_file:.2f} |"
        )


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--prepare", action="store_true", help="only make the files")
    parser.add_argument("--rates", action="store_true", help="only measure the types, on a quiet machine")
    parser.add_argument("--lab", type=Path, help="a lab file of the model that was measured before")
    parser.add_argument("--eval-chunks", type=int, default=1, help="chunks of each text that are scored (default: 1)")
    parser.add_argument("--work", type=Path, default=paths.cache_root() / "quality", help="default: %(default)s")
    parser.add_argument("-r", "--repetitions", type=int, default=5, help="default: 5")
    parser.add_argument("-t", "--threads", type=int, default=2, help="default: 2")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if not arguments.prepare:
        print("| model | MiB | KL divergence | tokens/s | ratio | of single runs | the same file |")
        print("|---|---|---|---|---:|---|---:|")
    for name in arguments.models:
        model = PreparedModel(name, arguments.work, threads=arguments.threads, eval_chunks=arguments.eval_chunks)
        contest = Contest(model, arguments.lab or model.lab(CALIBRATION_CHUNKS, 256, 4))
        if arguments.rates:
            contest.decode_time()
        elif arguments.prepare:
            print(name, contest.reference, contest.ours)
        else:
            print(contest.row(arguments.repetitions), flush=True)


if __name__ == "__main__":
    main()
