"""The performance targets of localinfer, each measured interleaved with its baseline.

    python tests/benchmarks/performance_targets.py --peer-avx2 PYTHON --ik PYTHON  # all: 25 minutes on two cores
    python tests/benchmarks/performance_targets.py --quick                         # fewer repetitions
    python tests/benchmarks/performance_targets.py "pp512 1B" decode               # rows with all words of a text
    python tests/benchmarks/performance_targets.py --list
    python tests/benchmarks/performance_targets.py --show bars.jsonl               # the table of earlier results

Each engine runs in a process of its own and sleeps while another computes: A B A B, after warm-up runs. The table has
medians, and the median ratio of adjacent runs with its smallest and largest value. llama.cpp uses the same number of
threads for prefill and decode. Unless the row states it, flash attention is on or off, whichever is faster in a first
run of each. pp512 evaluates 512 tokens in one call, tg128 evaluates 128 tokens one by one. "read bandwidth" is the
memory bandwidth that the same number of threads reach by reading only (localinfer/evaluation/roofline.py); ours is the
size of the weights times tokens per second. Models named 1B have the shape of Llama-3.2-1B, and 1B/4 has four of its
sixteen layers and a quarter of its vocabulary; their weights are random. Each result is appended to --output as a JSON
line. A row that fails shows the reason, and the others continue. Nothing else should run on the machine.

Needs the dependency groups `test` and `bench`. The other baselines need environments of their own with one package:

    python3 -m venv avx2 && CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX512=OFF -DGGML_AVX2=ON -DGGML_FMA=ON \\
        -DGGML_F16C=ON -DGGML_BMI2=ON" avx2/bin/pip install --no-cache-dir --no-binary llama-cpp-python llama-cpp-python
    python3 -m venv ik && ik/bin/pip install ik-llama-cpp-python        # a wheel, for x86 with AVX2
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parents[1]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import startup  # noqa: E402
import synthetic  # noqa: E402
from interleaved import EngineProcess, Setup, Workload, run_interleaved  # noqa: E402
from target_definitions import (  # noqa: E402
    FAST,
    HUB_NAMES,
    IK,
    LLAMA_AVX2,
    LLAMA_FLASH,
    MEMORY,
    TARGETS,
    SpeedTarget,
    StartupTarget,
    Target,
)

from localinfer.gguf.reader import GGUF, open_gguf  # noqa: E402
from localinfer.hub.resolve import find  # noqa: E402
from localinfer.machine.resources import default_threads  # noqa: E402
from quant import FORMATS  # noqa: E402
from quant.ggml import TYPES  # noqa: E402

AVX2 = (("NUMBA_CPU_NAME", "haswell"), ("NUMBA_CPU_FEATURES", ""))
SHARED_CONTEXT = 512  # tests that need no more share an engine


class RowSkipped(Exception):
    """The reason why a row cannot be measured on this machine."""


@dataclass(frozen=True)
class Outcome:
    """The result of a row: median rates or seconds, and the median ratio of ours to the baseline with its range."""

    unit: str
    ours: float
    baseline: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    met: bool | None = None
    note: str = ""


# --------------------------------------------------------------------------------------------- measuring


class EnginePool:
    """The engine processes of one model, shared by its rows."""

    def __init__(self, file: GGUF, arguments: argparse.Namespace) -> None:
        self.file, self.arguments = file, arguments
        self.engines: dict[Setup, EngineProcess] = {}

    def setup(self, target: SpeedTarget, engine: str, python: Path | None, options: dict[str, str]) -> Setup:
        """Return the setup of an engine for this row. Raises RowSkipped without a Python that has the engine."""
        if python is None:
            raise RowSkipped("no Python environment given; see --help")
        threads = target.threads or self.arguments.threads
        n_ctx = target.test.depth + max(SHARED_CONTEXT, target.test.tokens)
        return Setup(engine, self.file.path, threads, n_ctx, tuple(options.items()), str(python))

    def localinfer_engine(self, target: SpeedTarget, precision: str) -> EngineProcess:
        """Return the engine of this checkout. Raises RowSkipped for tensor types that it does not support."""
        missing = {tensor.type for tensor in self.file.tensors.values()} - FORMATS.keys()
        if missing:
            raise RowSkipped(f"not supported yet: {', '.join(TYPES[number].name for number in sorted(missing))}")
        setup = self.setup(target, "localinfer", Path(sys.executable), {"precision": precision})
        return self.get(replace(setup, environment=AVX2) if target.baseline == LLAMA_AVX2 else setup)

    def baselines(self, target: SpeedTarget) -> list[EngineProcess]:
        """Return the candidates for the baseline, of which the fastest is used."""
        a = self.arguments
        if target.baseline == FAST:
            return [self.localinfer_engine(target, "fast")]
        if target.baseline == MEMORY:
            return [self.get(self.setup(target, "memory", Path(sys.executable), {}))]
        if target.baseline == IK:
            return [self.get(self.setup(target, "ik_llama.cpp", a.ik, {}))]
        python = a.peer_avx2 if target.baseline == LLAMA_AVX2 else a.peer
        choices = ["on"] if target.baseline == LLAMA_FLASH else ["on", "off"]
        return [self.get(self.setup(target, "llama.cpp", python, {"flash_attn": choice})) for choice in choices]

    def get(self, setup: Setup) -> EngineProcess:
        """Return the engine process; start it if needed."""
        if setup not in self.engines:
            self.engines[setup] = EngineProcess(setup)
        return self.engines[setup]

    def close(self) -> None:
        """End all processes."""
        for contestant in self.engines.values():
            contestant.close()
        self.engines.clear()

    def measure(self, target: Target) -> Outcome:
        """Measure one row."""
        return measure_speed(self, target) if isinstance(target, SpeedTarget) else measure_startup(self, target)


def measure_speed(engines: EnginePool, target: SpeedTarget) -> Outcome:
    """Warm up, choose the fastest baseline, and run interleaved."""
    ours, rivals = engines.localinfer_engine(target, target.precision), engines.baselines(target)
    test = Workload(4, target.test.is_prefill, min(4, target.test.depth)) if engines.arguments.smoke else target.test
    ours.rate(test)
    rates = [rival.rate(test) for rival in rivals]
    rival = rivals[rates.index(max(rates))]
    result = run_interleaved(ours, rival, test, engines.arguments.repetitions, engines.arguments.seconds)
    unit, factor = "t/s", 1.0
    if target.baseline == MEMORY:
        unit, factor = "GB/s", gigabytes(engines.file)
    ratios = [ratio * factor for ratio in result.ratios]
    return Outcome(
        unit,
        median(result.ours) * factor,
        median(result.theirs),
        median(ratios),
        min(ratios),
        max(ratios),
        median(ratios) >= target.min_ratio if target.min_ratio else None,
        "" if len(rivals) == 1 else f"flash attention {dict(rival.setup.options)['flash_attn']}",
    )


def gigabytes(file: GGUF) -> float:
    """Return the gigabytes of weights read per token: all tensors except a separate token embedding matrix."""
    unread = "token_embd.weight" if "output.weight" in file.tensors else ""
    return sum(tensor.nbytes for name, tensor in file.tensors.items() if name != unread) / 1e9


def measure_startup(engines: EnginePool, target: StartupTarget) -> Outcome:
    """Measure whole processes, from the command line to the first token."""
    model, threads = str(engines.file.path), str(engines.arguments.threads)
    generate = ["generate", model, "-t", threads, *startup.ONE_TOKEN]
    if target.cold:
        with tempfile.TemporaryDirectory() as empty:
            seconds = startup.run_localinfer(*generate, LOCALINFER_CACHE_DIR=empty).seconds
        return Outcome("s", seconds, met=seconds <= target.max_seconds if target.max_seconds else None)
    bindings = [str(engines.arguments.peer), "-c", startup.BINDINGS, model, threads]
    startup.run_localinfer(*generate), startup.run(bindings)
    pairs = [
        (startup.run_localinfer(*generate).seconds, startup.run(bindings).seconds)
        for _ in range(engines.arguments.repetitions)
    ]
    ratios = [ours / reference for ours, reference in pairs]
    ours, reference = (median(each) for each in zip(*pairs, strict=True))
    met = ours <= target.max_seconds if target.max_seconds else median(ratios) <= (target.max_ratio or 0)
    return Outcome("s", ours, reference, median(ratios), min(ratios), max(ratios), met, "llama.cpp's Python bindings")


@contextlib.contextmanager
def open_model(model: str, arguments: argparse.Namespace) -> Iterator[GGUF]:
    """Open the model's file after reading it into the page cache. A synthetic model is written and later removed."""
    if model in HUB_NAMES:
        path = find(HUB_NAMES[model])
        read_into_page_cache(path)
        yield open_gguf(path)
        return
    size, recipe = model.split()
    n_layer, n_vocab = (16, synthetic.VOCABULARY) if size == "1B" else (4, synthetic.VOCABULARY // 4)
    if arguments.smoke:
        n_layer, n_vocab = 2, 4096
    path = arguments.folder / f"{size.replace('/', '-')}-{recipe}-{os.getpid()}.gguf"
    try:
        yield open_gguf(synthetic.write(path, recipe, n_layer=n_layer, n_vocab=n_vocab))
    finally:
        path.unlink(missing_ok=True)


def read_into_page_cache(path: Path) -> None:
    """Read the file once, so that the page cache contains it."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


# ------------------------------------------------------------------------------------------------ the run


def measure_targets(targets: Sequence[Target], arguments: argparse.Namespace) -> Iterator[tuple[Target, Outcome | str]]:
    """Yield each row's outcome, or the reason why there is none, model by model."""
    for model in dict.fromkeys(bar.model for bar in targets):
        rows = [bar for bar in targets if bar.model == model]
        try:
            with open_model(model, arguments) as file:
                yield from ((bar, outcome) for bar, outcome in measure_model(rows, file, arguments))
        except Exception as error:  # while creating the file; errors of rows are handled below
            yield from ((bar, f"failed: {type(error).__name__}: {error}") for bar in rows)


def measure_model(
    rows: Sequence[Target], file: GGUF, arguments: argparse.Namespace
) -> Iterator[tuple[Target, Outcome | str]]:
    """Yield the outcomes of one model's rows. The engines restart after a row that failed."""
    engines = EnginePool(file, arguments)
    try:
        for bar in rows:
            try:
                yield bar, engines.measure(bar)
            except RowSkipped as reason:
                yield bar, f"skipped: {reason}"
            except Exception as error:
                yield bar, f"failed: {error}"
                engines.close()
    finally:
        engines.close()


def to_record(target: Target, outcome: Outcome | str) -> dict[str, object]:
    """Return a result as a JSON object."""
    fields = asdict(outcome) if isinstance(outcome, Outcome) else {"note": outcome}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"time": now, "name": target.name, "requirement": target.requirement} | fields


def format_table(records: Sequence[dict[str, object]]) -> str:
    """Return a Markdown table of the last result of each row, in the order of TARGETS."""
    last = {str(record["name"]): record for record in records}
    lines = [
        "| | localinfer | baseline | ratio | range of ratios | required | met |",
        "|---|---:|---:|---:|---|---|---|",
    ]
    lines += [format_row(last[bar.name]) for bar in TARGETS if bar.name in last]
    return "\n".join(lines)


def format_row(record: dict[str, object]) -> str:
    """One row."""

    def number(key: str, template: str) -> str:
        return template.format(record[key], record.get("unit")) if record.get(key) is not None else ""

    met = {True: "yes", False: "**no**"}.get(record.get("met"), "") if record.get("unit") else record["note"]
    note = f" ({record['note']})" if record.get("unit") and record["note"] else ""
    spread = number("low", "{:.2f}") + number("high", " to {:.2f}")
    cells = [number("ours", "{:.4g} {}"), number("baseline", "{:.4g} {}"), number("ratio", "**{:.2f}**"), spread]
    return f"| {record['name']}{note} | {' | '.join(cells)} | {record['requirement']} | {met} |"


def select_targets(texts: Sequence[str], quick: bool) -> list[Target]:
    """Return the rows with all words of one of the texts; without texts, all rows, or if quick those with a target."""
    expected = [text.lower().split() for text in texts]
    if not expected:
        return [bar for bar in TARGETS if bar.requirement or not quick]
    return [bar for bar in TARGETS if any(all(word in bar.name.lower() for word in words) for words in expected)]


def default_folder() -> Path:
    """Return the folder for synthetic models: /dev/shm if it exists, else the temporary folder."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="TEXT", help="rows that contain all its words (default: all rows)")
    parser.add_argument("-t", "--threads", type=int, default=default_threads(), help="default: one for each core")
    parser.add_argument("-r", "--repetitions", type=int, help="of each engine, at most (default: 5; quick: 3)")
    parser.add_argument("--seconds", type=float, help="time limit for the runs of a row (default: 12; quick: 5)")
    parser.add_argument("--quick", action="store_true", help="fewer runs, and only rows with a target")
    parser.add_argument("--smoke", action="store_true", help="one run of four tokens on small files")
    parser.add_argument("--peer", type=Path, default=Path(sys.executable), help="Python with llama-cpp-python")
    parser.add_argument("--peer-avx2", type=Path, help="Python with llama-cpp-python compiled for AVX2 only")
    parser.add_argument("--ik", type=Path, help="Python with ik-llama-cpp-python")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="for synthetic models, up to 2.5 GB")
    parser.add_argument("-o", "--output", type=Path, default=Path("bars.jsonl"), help="default: bars.jsonl")
    parser.add_argument("--list", action="store_true", help="print the rows and exit")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the table of an --output file and exit")
    arguments = parser.parse_args()
    arguments.repetitions = arguments.repetitions or (1 if arguments.smoke else 3 if arguments.quick else 5)
    arguments.seconds = arguments.seconds or (5.0 if arguments.quick else 12.0)
    return arguments


def main() -> None:
    """Measure the selected rows, and print the table at the end even if a row fails."""
    arguments = parse_arguments()
    if arguments.show:
        print(format_table([json.loads(each) for each in arguments.show.read_text().splitlines()]))
        return
    targets = select_targets(arguments.rows, arguments.quick)
    expected = sum(bar.estimated_seconds for bar in targets) * (0.6 if arguments.quick else 1.0)
    print(f"{len(targets)} rows, about {expected / 60:.0f} minutes", file=sys.stderr)
    if arguments.list:
        print("\n".join(f"{bar.name}: {bar.requirement or 'no target'}" for bar in targets))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that files and processes are cleaned up
    records: list[dict[str, object]] = []
    begin = time.monotonic()
    try:
        for bar, outcome in measure_targets(targets, arguments):
            records.append(to_record(bar, outcome))
            with arguments.output.open("a") as file:
                file.write(json.dumps(records[-1]) + "\n")
            done = f"[{len(records)}/{len(targets)}, {(time.monotonic() - begin) / 60:.1f} min]"
            print(f"{done} {format_row(records[-1])}", file=sys.stderr, flush=True)
    finally:
        print(format_table(records))


if __name__ == "__main__":
    main()
