"""Compares recipes with types that are chosen for the same size, without and with the sensitivities of a lab.

    python tests/benchmarks/accuracy/target_sizes.py gemma3-270m --sizes Q4_K_M,Q3_K_M,IQ4_XS,200MB,175MB
    python tests/benchmarks/accuracy/target_sizes.py qwen2.5-coder-1.5b --sizes Q4_K_M,Q3_K_M,IQ4_XS --lab-ctx 256 \\
        --layers-at-once 4 --eval-chunks 1

A size is a recipe of llama.cpp or a number of bytes. All files are made with the same importance matrix of 16 chunks;
the lab reads the beginning of its text. A cell has the KL divergence from the source on texts that are used for nothing
else, and the ratio to the recipe. `prepared_model.py` describes the source and the texts. Prints a Markdown table.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

from prepared_model import CALIBRATION_CHUNKS, PreparedModel  # noqa: E402
from quantizers import run_localinfer  # noqa: E402
from ratios import geometric_mean  # noqa: E402

from localinfer import paths  # noqa: E402
from localinfer.quantization.recipes import RECIPES  # noqa: E402

MIB = 1 << 20


def rows(model: PreparedModel, sizes: list[str], lab: Path) -> Iterator[str]:
    """Yield a row of the table for each size."""
    _, imatrix = model.calibration_files(CALIBRATION_CHUNKS)
    out = model.folder / f"{model.name}-target.gguf"

    def divergence(*arguments: str | Path) -> tuple[float, int]:
        """Return the divergence and the size of a file."""
        run_localinfer("quantize", model.source, out, *arguments, "--imatrix", imatrix, "--force")
        found = geometric_mean(model.divergence_evaluator(out)), out.stat().st_size
        out.unlink()
        return found

    for size in sizes:
        own, nbytes = divergence(size) if size in RECIPES else (None, None)
        target = str(nbytes or size)
        found = [divergence("--target-size", target), divergence("--target-size", target, "--lab", lab)]
        cells = [f"{value:.4f}" + (f", **{value / own:.2f}**" if own else "") for value, _ in found]
        first = f"{own:.4f}" if own else ""
        yield f"| {model.name} | {size} | {(nbytes or found[0][1]) / MIB:.1f} | {first} | {' | '.join(cells)} |"


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--sizes", default="Q4_K_M,Q3_K_M,IQ4_XS", help="default: %(default)s")
    parser.add_argument("--lab", type=Path, help="a lab file that was measured before")
    parser.add_argument("--lab-ctx", type=int, default=512, help="tokens of a chunk of the lab (default: 512)")
    parser.add_argument("--layers-at-once", type=int, default=1, help="of the lab (default: 1)")
    parser.add_argument("--eval-chunks", type=int, default=2, help="chunks of each text that are scored (default: 2)")
    parser.add_argument("--work", type=Path, default=paths.cache_root() / "quality", help="default: %(default)s")
    parser.add_argument("-t", "--threads", type=int, default=2, help="default: 2")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    model = PreparedModel(
        arguments.model, arguments.work, threads=arguments.threads, eval_chunks=arguments.eval_chunks
    )
    lab = arguments.lab or model.lab(CALIBRATION_CHUNKS, arguments.lab_ctx, arguments.layers_at_once)
    print("| | size of | MiB | recipe | `--target-size` | `--target-size --lab` |")
    print("|---|---|---:|---:|---:|---:|")
    for row in rows(model, arguments.sizes.split(","), lab):
        print(row, flush=True)


if __name__ == "__main__":
    main()
