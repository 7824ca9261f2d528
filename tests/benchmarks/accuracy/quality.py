"""How much of a model do quantized files keep? localinfer, llama.cpp, and what importance and effort are worth.

    python tests/benchmarks/accuracy/quality.py --json quality.jsonl --resume  # three models, all recipes: many hours
    python tests/benchmarks/accuracy/quality.py smollm2 --recipes Q4_K_M,pure-Q4_0 --chunks 4
    python tests/benchmarks/accuracy/quality.py smollm2 --contenders localinfer,llama.cpp --calibration varied

Made so that nobody can tune to it by accident. The source is the model in F32, moved off the grid of its old blocks
(dither.py), or else whoever finds that grid wins. Files are judged on texts of several kinds
(tests/data/quality/*_a.txt), and calibrated with others, of several sizes (calibration.py); both programs get the same
importance matrix, measured by localinfer. With several --seeds that is done with noise of each of them, as a single
file of a model is good or bad by chance, too. A number is the mean of KL(source || file) over the second half of every
512 tokens, in nats, with `precision high`; `all` is the geometric mean of the kinds. Then its ratio to those of its
rivals with the standard error, below 1 where the file is better; a rival of another size is marked. `pure-` in front of
a recipe: all matrices in one type. The last table has the mean and the worst ratio for each bar.

The working folder keeps the sources, the importance matrices and the sources' log-probabilities for the next run: 0.9,
3 and 8 GB for the three models. Rows in --json do not say which code made them: begin another file when the code has
changed. A row whose file cannot be made says why, and the others go on. Needs the groups `test` and `bench`. Prints
Markdown.
"""

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[3])]

from calibration import CALIBRATIONS, KINDS, QUALITY, beginning  # noqa: E402
from contenders import CONTENDERS, PURE, Task, localinfer  # noqa: E402
from dither import dithered  # noqa: E402
from judge import Judge  # noqa: E402
from ratios import Key, Row, append, as_json, bars, header, line, read  # noqa: E402

from localinfer import paths  # noqa: E402
from localinfer.errors import LocalInferError  # noqa: E402
from localinfer.files.gguf import open_gguf  # noqa: E402
from localinfer.models.registry import find  # noqa: E402
from localinfer.quantizing.recipes import RECIPES as KNOWN  # noqa: E402

MODELS = ("smollm2", "gemma3-270m", "qwen2.5-coder-1.5b")
MIXES = "Q2_K,Q3_K_M,Q4_K_S,Q4_K_M,Q5_K_M,Q6_K,IQ2_M,IQ3_XXS,IQ3_M,IQ4_XS"
RECIPES = f"{MIXES},pure-Q4_0,pure-Q4_1,pure-Q5_0"


class Bench:
    """One model with one noise: what is made of it once, when it is first needed, and kept in the folder."""

    def __init__(self, model: str, seed: int, arguments: argparse.Namespace) -> None:
        self.seed = seed
        self.name, self.path = Path(model).stem if model.endswith(".gguf") else model, find(model)
        self.folder, self.threads = arguments.work, arguments.threads
        self.calibration, self.chunks, self.eval_chunks = arguments.calibration, arguments.chunks, arguments.eval_chunks

    @cached_property
    def source(self) -> Path:
        stat = self.path.stat()
        digest = hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:8]
        return dithered(self.path, self.folder / f"{self.name}-{digest}-{self.seed}.gguf", self.seed)

    @cached_property
    def judge(self) -> Judge:
        texts = {kind: QUALITY / f"{kind}_a.txt" for kind in KINDS}
        return Judge(self.source, texts, chunks=self.eval_chunks, folder=self.folder, threads=self.threads)

    @cached_property
    def texts(self) -> dict[int, str]:
        """What is calibrated with, by the number of chunks that it has."""
        text = CALIBRATIONS[self.calibration]()
        return dict(beginning(self.path, text, chunks) for chunks in self.chunks)

    def calibrated(self, chunks: int) -> tuple[Path, Path]:
        """The file of that text, and of the importance matrix."""
        text = self.texts[chunks]
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        stem = self.folder / f"{self.source.stem}-{self.calibration}-{chunks}-{digest}"
        file, imatrix = stem.with_name(f"{stem.name}.txt"), stem.with_name(f"{stem.name}.imatrix")
        if not imatrix.exists():
            file.write_text(text, encoding="utf-8")
            localinfer("imatrix", self.source, "-f", file, "--chunks", str(chunks), "-o", imatrix,
                       "--output-format", "gguf", "-t", str(self.threads))  # fmt: skip
        return file, imatrix

    def measure(self, key: Key) -> Row:
        """Have a file made and judge it. Raises RuntimeError where it cannot be made."""
        text, imatrix = self.calibrated(key.chunks) if key.chunks else (None, None)
        source, judge, out = self.source, self.judge, self.folder / f"out-{os.getpid()}.gguf"
        begin = time.perf_counter()
        try:
            CONTENDERS[key.contender].make(Task(source, out, key.recipe, imatrix, text, self.threads))
            made = time.perf_counter()
            tokens = judge(out)
            size = sum(tensor.data.nbytes for tensor in open_gguf(out).tensors.values())
            return Row(key, size, made - begin, time.perf_counter() - made, tokens)
        finally:
            out.unlink(missing_ok=True)

    def keys(self, recipes: Sequence[str], contenders: Sequence[str]) -> Iterator[Key]:
        """All rows, rivals first; what is not calibrated is there once, whatever the chunks."""
        for recipe in recipes:
            for chunks in (0, *self.texts):
                for name, contender in CONTENDERS.items():
                    if name in contenders and contender.calibrated == bool(chunks):
                        calibration = self.calibration * bool(chunks)
                        yield Key(self.name, recipe, name, calibration, chunks, self.eval_chunks, self.seed)


def recipes(text: str) -> list[str]:
    return known(text, [*KNOWN, *(PURE + name for name in KNOWN)])


def numbers(text: str) -> list[int]:
    return sorted(map(int, text.split(",")))


def contenders(text: str) -> list[str]:
    return known(text, list(CONTENDERS))


def known(text: str, names: Sequence[str]) -> list[str]:
    """A list of names, with a complaint about those that are not among these."""
    if unknown := set(text.split(",")) - set(names):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: known are {', '.join(names)}")
    return text.split(",")


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"names or paths (default: {' '.join(MODELS)})")
    parser.add_argument("--recipes", type=recipes, default=RECIPES, help=f"default: {RECIPES}")
    parser.add_argument("--contenders", type=contenders, default=",".join(CONTENDERS), help="default: %(default)s")
    parser.add_argument("--calibration", choices=CALIBRATIONS, default="mixed", help="default: mixed")
    parser.add_argument("--chunks", type=numbers, default="4,16,64", help="to calibrate with (default: 4,16,64)")
    parser.add_argument("--seeds", type=numbers, default="1", help="of the noise in the source (default: 1)")
    parser.add_argument("--eval-chunks", type=int, default=2, help="of each kind of text (default: 2)")
    parser.add_argument("--work", type=Path, default=paths.cache_root() / "quality", help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append each row's figures as a line")
    parser.add_argument("--resume", action="store_true", help="take the rows that are in that file from there")
    parser.add_argument("-t", "--threads", type=int, default=2, help="default: 2")
    arguments = parser.parse_args()
    if arguments.resume and not arguments.json:
        parser.error("--resume: needs --json FILE")
    return arguments


def measured(bench: Bench, key: Key, rows: dict[Key, Row], output: Path | None) -> str:
    """Measure a row, put it where it belongs, and say what it is."""
    try:
        rows[key] = bench.measure(key)
    except (RuntimeError, LocalInferError) as problem:
        return f"| {key.model} | {key.seed} | {key.recipe} | {key.contender} | {key.chunks or ''} | {problem} |"
    if output:
        append(output, as_json(rows[key], rows))
    return line(rows[key], rows)


def main() -> None:
    """A row for each file, and what they say of each bar."""
    arguments = parsed()
    arguments.work.mkdir(parents=True, exist_ok=True)
    before = {row.key: row for row in read(arguments.json)} if arguments.resume else {}
    rows: dict[Key, Row] = {}
    print(header(KINDS))
    for bench in [Bench(model, seed, arguments) for model in arguments.models or MODELS for seed in arguments.seeds]:
        for key in bench.keys(arguments.recipes, arguments.contenders):
            if key in before:
                rows[key] = before[key]
                print(line(rows[key], rows), flush=True)
            else:
                print(measured(bench, key, rows, arguments.json), flush=True)
    print("", *bars(rows), sep="\n")


if __name__ == "__main__":
    main()
