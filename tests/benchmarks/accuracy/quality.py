"""Measures the quality of quantized files: localinfer and llama.cpp, with and without importance matrices.

    python tests/benchmarks/accuracy/quality.py --json quality.jsonl --resume  # three models, all recipes: many hours
    python tests/benchmarks/accuracy/quality.py smollm2 --recipes Q4_K_M,pure-Q4_0 --chunks 4
    python tests/benchmarks/accuracy/quality.py smollm2 --contenders localinfer,llama.cpp --calibration varied

The setup avoids accidental overfitting. The source is the model in F32, moved off the grid of its old blocks
(dither.py), because otherwise an encoder that finds that grid wins. Files are evaluated on texts of several kinds
(tests/data/quality/*_a.txt) and calibrated with other texts of several sizes (calibration.py). Both programs use the
same importance matrix, measured by localinfer. Several --seeds repeat this with different noise, because the quality of
a single file also depends on chance. A cell has the mean of KL(source || file) over the second half of every 512
tokens, in nats, with `precision high`; `all` is the geometric mean over the kinds of text. The next column has the
ratio to each baseline with its standard error, below 1 if the file is better; a baseline of another size is marked. The
prefix `pure-` of a recipe means that all matrices have the same type. The last table has the mean and the worst ratio
for each target.

The working folder keeps the sources, the importance matrices and the sources' log-probabilities for the next run: 0.9,
3 and 8 GB for the three models. The rows in --json do not identify the version of the code; use a new file after a
change of the code. A row whose file cannot be written shows the reason, and the others continue. Prints Markdown. Needs
the groups `test` and `bench`.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[3])]

from calibration import CALIBRATIONS, KINDS  # noqa: E402
from prepared_model import PreparedModel  # noqa: E402
from quantizers import PURE, QUANTIZERS, Task  # noqa: E402
from ratios import Key, Row, append_line, format_header, format_row, format_targets, read_rows, to_json  # noqa: E402

from localinfer import paths  # noqa: E402
from localinfer.errors import LocalInferError  # noqa: E402
from localinfer.gguf.reader import open_gguf  # noqa: E402
from localinfer.quantization.recipes import RECIPES as KNOWN  # noqa: E402

MODELS = ("smollm2", "gemma3-270m", "qwen2.5-coder-1.5b")
MIXES = "Q2_K,Q3_K_M,Q4_K_S,Q4_K_M,Q5_K_M,Q6_K,IQ2_M,IQ3_XXS,IQ3_M,IQ4_XS"
RECIPES = f"{MIXES},pure-Q4_0,pure-Q4_1,pure-Q5_0"


class Bench(PreparedModel):
    """One model with one noise seed, and the quantizers' files of it."""

    def __init__(self, model: str, seed: int, arguments: argparse.Namespace) -> None:
        super().__init__(
            model, arguments.work, seed=seed, threads=arguments.threads, calibration=arguments.calibration,
            eval_chunks=arguments.eval_chunks,
        )  # fmt: skip
        self.chunks = arguments.chunks

    @cached_property
    def calibration_chunks(self) -> list[int]:
        """The numbers of chunks that the calibration text has."""
        return sorted({self.calibration_text(chunks)[0] for chunks in self.chunks})

    def measure(self, key: Key) -> Row:
        """Write a quantized file and measure its divergence. Raises RuntimeError if the quantizer fails."""
        text, imatrix = self.calibration_files(key.chunks) if key.chunks else (None, None)
        source, evaluator, out = self.source, self.divergence_evaluator, self.folder / f"out-{os.getpid()}.gguf"
        begin = time.perf_counter()
        try:
            QUANTIZERS[key.contender].make(Task(source, out, key.recipe, imatrix, text, self.threads))
            created = time.perf_counter()
            tokens = evaluator(out)
            size = sum(tensor.data.nbytes for tensor in open_gguf(out).tensors.values())
            return Row(key, size, created - begin, time.perf_counter() - created, tokens)
        finally:
            out.unlink(missing_ok=True)

    def keys(self, recipes: Sequence[str], contenders: Sequence[str]) -> Iterator[Key]:
        """Yield the keys of all rows, baselines first; quantizers without calibration have one row for all chunks."""
        for recipe in recipes:
            for chunks in (0, *self.calibration_chunks):
                for name, contender in QUANTIZERS.items():
                    if name in contenders and contender.uses_calibration == bool(chunks):
                        calibration = self.calibration * bool(chunks)
                        yield Key(self.name, recipe, name, calibration, chunks, self.eval_chunks, self.seed)


def parse_recipes(text: str) -> list[str]:
    return parse_names(text, [*KNOWN, *(PURE + name for name in KNOWN)])


def parse_numbers(text: str) -> list[int]:
    return sorted(map(int, text.split(",")))


def parse_quantizers(text: str) -> list[str]:
    return parse_names(text, list(QUANTIZERS))


def parse_names(text: str, names: Sequence[str]) -> list[str]:
    """Parse a list of names. Raises argparse.ArgumentTypeError for an unknown one."""
    if unknown := set(text.split(",")) - set(names):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: known are {', '.join(names)}")
    return text.split(",")


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"names or paths (default: {' '.join(MODELS)})")
    parser.add_argument("--recipes", type=parse_recipes, default=RECIPES, help=f"default: {RECIPES}")
    parser.add_argument(
        "--contenders", type=parse_quantizers, default=",".join(QUANTIZERS), help="default: %(default)s"
    )
    parser.add_argument("--calibration", choices=CALIBRATIONS, default="mixed", help="default: mixed")
    parser.add_argument(
        "--chunks", type=parse_numbers, default="4,16,64", help="chunks of calibration data (default: 4,16,64)"
    )
    parser.add_argument(
        "--seeds", type=parse_numbers, default="1", help="seeds of the noise in the source (default: 1)"
    )
    parser.add_argument(
        "--eval-chunks", type=int, default=2, help="chunks of each kind of evaluation text (default: 2)"
    )
    parser.add_argument("--work", type=Path, default=paths.cache_root() / "quality", help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append each row as a JSON line")
    parser.add_argument("--resume", action="store_true", help="reuse the rows in that file")
    parser.add_argument("-t", "--threads", type=int, default=2, help="default: 2")
    arguments = parser.parse_args()
    if arguments.resume and not arguments.json:
        parser.error("--resume: needs --json FILE")
    return arguments


def measure_row(bench: Bench, key: Key, rows: dict[Key, Row], output: Path | None) -> str:
    """Measure a row, store it, and return its table row."""
    try:
        rows[key] = bench.measure(key)
    except (RuntimeError, LocalInferError) as problem:
        return f"| {key.model} | {key.seed} | {key.recipe} | {key.contender} | {key.chunks or ''} | {problem} |"
    if output:
        append_line(output, to_json(rows[key], rows))
    return format_row(rows[key], rows)


def main() -> None:
    """Print a row for each file, and a row for each target."""
    arguments = parse_arguments()
    arguments.work.mkdir(parents=True, exist_ok=True)
    before = {row.key: row for row in read_rows(arguments.json)} if arguments.resume else {}
    rows: dict[Key, Row] = {}
    print(format_header(KINDS))
    for bench in [Bench(model, seed, arguments) for model in arguments.models or MODELS for seed in arguments.seeds]:
        for key in bench.keys(arguments.recipes, arguments.contenders):
            if key in before:
                rows[key] = before[key]
                print(format_row(rows[key], rows), flush=True)
            else:
                print(measure_row(bench, key, rows, arguments.json), flush=True)
    print("", *format_targets(rows), sep="\n")


if __name__ == "__main__":
    main()
