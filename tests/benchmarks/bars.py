"""The speeds that this program is held to, each measured side by side with its rival, in one run.

    python tests/benchmarks/bars.py --peer-avx2 PYTHON --ik PYTHON      # everything: about 25 minutes on two cores
    python tests/benchmarks/bars.py --quick                             # fewer repetitions
    python tests/benchmarks/bars.py "pp512 1B" decode                   # rows that have all words of one of the texts
    python tests/benchmarks/bars.py --list
    python tests/benchmarks/bars.py --show bars.jsonl                   # the table of what was measured before

Each engine runs in a process of its own and sleeps while another computes: A B A B, after runs that do not count.
The table gives medians, and the median of the ratios of neighbouring runs with the smallest and the largest.
llama.cpp has as many threads for prompts as for answers, and flash attention on or off, whichever is faster in a
first run of each, where the row does not say. pp512 evaluates 512 tokens in one call, tg128 evaluates 128 one by
one; "read bandwidth" is what as many threads read from memory that do nothing else (localinfer/judging/roofline.py),
and ours the bytes of the weights times the tokens a second. Models named 1B have the shape of Llama-3.2-1B, and 1B/4
four of its sixteen layers and a quarter of its vocabulary; their weights are random. Every result is appended to
--output as a line of JSON. A row that fails says why, and the others go on. Nothing else should run on the machine.

Needs the dependency groups `test` and `bench`. The other peers live in environments of their own, with one package:

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
from places import PYTHONPATH

sys.path[:0] = PYTHONPATH

import start  # noqa: E402
import synthetic  # noqa: E402
from bar_rows import BARS, FAST, IK, LLAMA_AVX2, LLAMA_FLASH, MEMORY, NAMED, Bar, SpeedBar, StartBar  # noqa: E402
from contest import Contestant, Setup, Test, take_turns  # noqa: E402

from localinfer.engine.machine import default_threads  # noqa: E402
from localinfer.files.gguf import GGUF, open_gguf  # noqa: E402
from localinfer.models.registry import find  # noqa: E402
from quant import FORMATS  # noqa: E402
from quant.ggml import TYPES  # noqa: E402

AVX2 = (("NUMBA_CPU_NAME", "haswell"), ("NUMBA_CPU_FEATURES", ""))
SHARED_CONTEXT = 512  # tests that need no more share an engine


class Skipped(Exception):
    """Why a row cannot be measured here."""


@dataclass(frozen=True)
class Outcome:
    """What a row measured; `ratio` is ours to theirs, with the smallest and largest of single runs."""

    unit: str
    ours: float
    theirs: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    met: bool | None = None
    note: str = ""


# --------------------------------------------------------------------------------------------- measuring


class Hall:
    """The engines that are loaded for one model: rows of it share them."""

    def __init__(self, file: GGUF, arguments: argparse.Namespace) -> None:
        self.file, self.arguments = file, arguments
        self.contestants: dict[Setup, Contestant] = {}

    def setup(self, bar: SpeedBar, engine: str, python: Path | None, options: dict[str, str]) -> Setup:
        """An engine on this row's model and threads. Raises Skipped where there is no Python that has it."""
        if python is None:
            raise Skipped("no environment was given: see --help")
        threads = bar.threads or self.arguments.threads
        n_ctx = bar.test.depth + max(SHARED_CONTEXT, bar.test.tokens)
        return Setup(engine, self.file.path, threads, n_ctx, tuple(options.items()), str(python))

    def ours(self, bar: SpeedBar, precision: str) -> Contestant:
        """This checkout. Raises Skipped for what it does not have yet."""
        missing = {tensor.type for tensor in self.file.tensors.values()} - FORMATS.keys()
        if missing:
            raise Skipped(f"not supported yet: {', '.join(TYPES[number].name for number in sorted(missing))}")
        setup = self.setup(bar, "localinfer", Path(sys.executable), {"precision": precision})
        return self.loaded(replace(setup, environment=AVX2) if bar.rival == LLAMA_AVX2 else setup)

    def rivals(self, bar: SpeedBar) -> list[Contestant]:
        """Who may be the rival: the fastest is."""
        a = self.arguments
        if bar.rival == FAST:
            return [self.ours(bar, "fast")]
        if bar.rival == MEMORY:
            return [self.loaded(self.setup(bar, "memory", Path(sys.executable), {}))]
        if bar.rival == IK:
            return [self.loaded(self.setup(bar, "ik_llama.cpp", a.ik, {}))]
        python = a.peer_avx2 if bar.rival == LLAMA_AVX2 else a.peer
        choices = ["on"] if bar.rival == LLAMA_FLASH else ["on", "off"]
        return [self.loaded(self.setup(bar, "llama.cpp", python, {"flash_attn": choice})) for choice in choices]

    def loaded(self, setup: Setup) -> Contestant:
        """The engine, started if it is not there."""
        if setup not in self.contestants:
            self.contestants[setup] = Contestant(setup)
        return self.contestants[setup]

    def close(self) -> None:
        """End all."""
        for contestant in self.contestants.values():
            contestant.close()
        self.contestants.clear()

    def measure(self, bar: Bar) -> Outcome:
        """One row."""
        return measured_speed(self, bar) if isinstance(bar, SpeedBar) else measured_start(self, bar)


def measured_speed(hall: Hall, bar: SpeedBar) -> Outcome:
    """Warm up, choose the rival, take turns."""
    ours, rivals = hall.ours(bar, bar.precision), hall.rivals(bar)
    test = Test(4, bar.test.at_once, min(4, bar.test.depth)) if hall.arguments.smoke else bar.test
    ours.rate(test)
    rates = [rival.rate(test) for rival in rivals]
    rival = rivals[rates.index(max(rates))]
    result = take_turns(ours, rival, test, hall.arguments.repetitions, hall.arguments.seconds)
    unit, factor = "t/s", 1.0
    if bar.rival == MEMORY:
        unit, factor = "GB/s", gigabytes(hall.file)
    ratios = [ratio * factor for ratio in result.ratios]
    return Outcome(
        unit,
        median(result.ours) * factor,
        median(result.theirs),
        median(ratios),
        min(ratios),
        max(ratios),
        median(ratios) >= bar.at_least if bar.at_least else None,
        "" if len(rivals) == 1 else f"flash attention {dict(rival.setup.options)['flash_attn']}",
    )


def gigabytes(file: GGUF) -> float:
    """The weights that a token touches: all, but of a separate table of tokens only one row."""
    unread = "token_embd.weight" if "output.weight" in file.tensors else ""
    return sum(tensor.nbytes for name, tensor in file.tensors.items() if name != unread) / 1e9


def measured_start(hall: Hall, bar: StartBar) -> Outcome:
    """Whole processes, from the command line to the first token."""
    model, threads = str(hall.file.path), str(hall.arguments.threads)
    generate = ["generate", model, "-t", threads, *start.HELLO]
    if bar.cold:
        with tempfile.TemporaryDirectory() as empty:
            seconds = start.localinfer(*generate, LOCALINFER_CACHE_DIR=empty).seconds
        return Outcome("s", seconds, met=seconds <= bar.at_most if bar.at_most else None)
    bindings = [str(hall.arguments.peer), "-c", start.BINDINGS, model, threads]
    start.localinfer(*generate), start.run(bindings)
    pairs = [
        (start.localinfer(*generate).seconds, start.run(bindings).seconds)
        for _ in range(hall.arguments.repetitions)
    ]
    ratios = [ours / theirs for ours, theirs in pairs]
    ours, theirs = (median(each) for each in zip(*pairs, strict=True))
    met = ours <= bar.at_most if bar.at_most else median(ratios) <= (bar.ratio_at_most or 0)
    return Outcome("s", ours, theirs, median(ratios), min(ratios), max(ratios), met, "llama.cpp's Python bindings")


@contextlib.contextmanager
def opened(model: str, arguments: argparse.Namespace) -> Iterator[GGUF]:
    """The model's file, read once so that it is in memory; a synthetic one is written, and removed again."""
    if model in NAMED:
        path = find(NAMED[model])
        touch(path)
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


def touch(path: Path) -> None:
    """Have the system keep the file in memory."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


# ------------------------------------------------------------------------------------------------ the run


def measured(bars: Sequence[Bar], arguments: argparse.Namespace) -> Iterator[tuple[Bar, Outcome | str]]:
    """Every row, model by model: its outcome, or why there is none."""
    for model in dict.fromkeys(bar.model for bar in bars):
        rows = [bar for bar in bars if bar.model == model]
        try:
            with opened(model, arguments) as file:
                yield from ((bar, outcome) for bar, outcome in on_one_model(rows, file, arguments))
        except Exception as error:  # of making the file: those of rows are caught there
            yield from ((bar, f"failed: {type(error).__name__}: {error}") for bar in rows)


def on_one_model(rows: Sequence[Bar], file: GGUF, arguments: argparse.Namespace) -> Iterator[tuple[Bar, Outcome | str]]:
    """Every row of one model; engines start anew after a row that failed."""
    hall = Hall(file, arguments)
    try:
        for bar in rows:
            try:
                yield bar, hall.measure(bar)
            except Skipped as reason:
                yield bar, f"skipped: {reason}"
            except Exception as error:
                yield bar, f"failed: {error}"
                hall.close()
    finally:
        hall.close()


def record(bar: Bar, outcome: Outcome | str) -> dict[str, object]:
    """A result as one JSON object."""
    facts = asdict(outcome) if isinstance(outcome, Outcome) else {"note": outcome}
    return {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "name": bar.name, "need": bar.need} | facts


def table(records: Sequence[dict[str, object]]) -> str:
    """The last result of each row, in the order of BARS, as Markdown."""
    last = {str(record["name"]): record for record in records}
    lines = ["| | localinfer | rival | ratio | of single runs | needed | met |", "|---|---:|---:|---:|---|---|---|"]
    lines += [line(last[bar.name]) for bar in BARS if bar.name in last]
    return "\n".join(lines)


def line(record: dict[str, object]) -> str:
    """One row."""

    def number(key: str, form: str) -> str:
        return form.format(record[key], record.get("unit")) if record.get(key) is not None else ""

    met = {True: "yes", False: "**no**"}.get(record.get("met"), "") if record.get("unit") else record["note"]
    note = f" ({record['note']})" if record.get("unit") and record["note"] else ""
    spread = number("low", "{:.2f}") + number("high", " to {:.2f}")
    cells = [number("ours", "{:.4g} {}"), number("theirs", "{:.4g} {}"), number("ratio", "**{:.2f}**"), spread]
    return f"| {record['name']}{note} | {' | '.join(cells)} | {record['need']} | {met} |"


def selected(texts: Sequence[str], quick: bool) -> list[Bar]:
    """The rows with all words of one of the texts; without a text, all, but no mere information if it is quick."""
    wanted = [text.lower().split() for text in texts]
    if not wanted:
        return [bar for bar in BARS if bar.need or not quick]
    return [bar for bar in BARS if any(all(word in bar.name.lower() for word in words) for words in wanted)]


def default_folder() -> Path:
    """Where synthetic models are written: memory, where the system has a folder for it."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="TEXT", help="rows that have all its words (default: all rows)")
    parser.add_argument("-t", "--threads", type=int, default=default_threads(), help="default: one for each core")
    parser.add_argument("-r", "--repetitions", type=int, help="of each engine, at most (default: 5; quick: 3)")
    parser.add_argument("--seconds", type=float, help="no further runs of a row after these (default: 12; quick: 5)")
    parser.add_argument("--quick", action="store_true", help="fewer runs, and only rows that have a bar")
    parser.add_argument("--smoke", action="store_true", help="one run of four tokens on small files: does it work?")
    parser.add_argument("--peer", type=Path, default=Path(sys.executable), help="Python with llama-cpp-python")
    parser.add_argument("--peer-avx2", type=Path, help="Python with llama-cpp-python compiled for AVX2 only")
    parser.add_argument("--ik", type=Path, help="Python with ik-llama-cpp-python")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="of synthetic models, up to 2.5 GB")
    parser.add_argument("-o", "--output", type=Path, default=Path("bars.jsonl"), help="default: bars.jsonl")
    parser.add_argument("--list", action="store_true", help="name the rows, and stop")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the table of an --output, and stop")
    arguments = parser.parse_args()
    arguments.repetitions = arguments.repetitions or (1 if arguments.smoke else 3 if arguments.quick else 5)
    arguments.seconds = arguments.seconds or (5.0 if arguments.quick else 12.0)
    return arguments


def main() -> None:
    """Measure what is asked for, row by row; the table comes last, whatever happens."""
    arguments = parsed()
    if arguments.show:
        print(table([json.loads(each) for each in arguments.show.read_text().splitlines()]))
        return
    bars = selected(arguments.rows, arguments.quick)
    expected = sum(bar.seconds for bar in bars) * (0.6 if arguments.quick else 1.0)
    print(f"{len(bars)} rows, about {expected / 60:.0f} minutes", file=sys.stderr)
    if arguments.list:
        print("\n".join(f"{bar.name}: {bar.need or 'no bar'}" for bar in bars))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or files and processes would be left behind
    records: list[dict[str, object]] = []
    begin = time.monotonic()
    try:
        for bar, outcome in measured(bars, arguments):
            records.append(record(bar, outcome))
            with arguments.output.open("a") as file:
                file.write(json.dumps(records[-1]) + "\n")
            done = f"[{len(records)}/{len(bars)}, {(time.monotonic() - begin) / 60:.1f} min]"
            print(f"{done} {line(records[-1])}", file=sys.stderr, flush=True)
    finally:
        print(table(records))


if __name__ == "__main__":
    main()
