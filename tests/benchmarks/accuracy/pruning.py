"""Measures the divergence of models without some layers: those that `--prune-layers auto:N` chooses, and others.

    python tests/benchmarks/accuracy/pruning.py smollm2 auto:3 24,25,26

The search reads the beginning of the calibration text. The divergence is measured on texts that are used for nothing
else. `prepared_model.py` describes the source and the texts. Prints a Markdown table.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

from prepared_model import CALIBRATION_CHUNKS, PreparedModel  # noqa: E402
from quantizers import run_localinfer  # noqa: E402
from ratios import geometric_mean  # noqa: E402

from localinfer import paths  # noqa: E402

AUTO = "auto:"


def divergence_without(model: PreparedModel, layers: str) -> float:
    """Return the divergence of the model without some layers: their numbers, or how many are chosen."""
    text, _ = model.calibration_files(CALIBRATION_CHUNKS)
    out = model.folder / f"{model.name}-pruned.gguf"
    search = ["--prune-text", text] if layers.startswith(AUTO) else []
    run_localinfer("quantize", model.source, out, "COPY", "--prune-layers", layers, *search, "--force")
    found = geometric_mean(model.divergence_evaluator(out))
    out.unlink()
    return found


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("layers", nargs="+", metavar="LAYERS", help="auto:COUNT, or numbers such as 24,25,26")
    parser.add_argument("--work", type=Path, default=paths.cache_root() / "quality", help="default: %(default)s")
    parser.add_argument("-t", "--threads", type=int, default=2, help="default: 2")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    model = PreparedModel(arguments.model, arguments.work, threads=arguments.threads)
    print("| model | without layers | KL divergence |")
    print("|---|---|---:|")
    for layers in arguments.layers:
        print(f"| {model.name} | {layers} | {divergence_without(model, layers):.4f} |", flush=True)


if __name__ == "__main__":
    main()
