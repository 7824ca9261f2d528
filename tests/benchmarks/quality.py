"""How far is a quantized model from its source, at the same size, made by localinfer and by llama.cpp?

    python tests/benchmarks/quality.py smollm2                                  # Q4_K_M, Q3_K_M, Q2_K
    python tests/benchmarks/quality.py model-f16.gguf Q4_K_M IQ3_XS --chunks 100

The source is the model with its matrices in F16. Both quantizers get the same importance matrix, which `localinfer
imatrix --covariance` makes of Python's own documentation: the sums of squares are what llama.cpp takes, and the efforts
`fast` and `normal` of localinfer; `max` also uses the covariances, and `calibrate` reads that text itself. A number is
the mean of KL(source || file) over the second half of every 512 tokens of another text (`localinfer compare --precision
high`), in nats, with its error; then its ratio to that of llama.cpp's file, and their sizes in bytes. Needs the groups
`test` and `bench`. Prints a Markdown table.
"""

import argparse
import ctypes
import json
import pydoc_data.topics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from requantize import as_entries, file_type, requantize

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from peer import C  # noqa: E402

from localinfer.files.imatrix_file import read_imatrix  # noqa: E402
from localinfer.models.registry import find  # noqa: E402

EFFORTS = ("fast", "normal", "max")
VARIED = ROOT / "tests" / "data" / "varied.txt"


def localinfer(*arguments: str | Path) -> str:
    """Run a command; what it writes to stdout. What it says goes to our stderr."""
    command = [sys.executable, "-m", "localinfer", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout


def by_llama_cpp(source: Path, out: Path, recipe: str, imatrix: Path) -> None:
    """Have llama.cpp quantize with this importance matrix. Raises RuntimeError where it cannot."""
    entries = read_imatrix(imatrix).entries.items()
    means = {name: np.ascontiguousarray(entry.means.reshape(-1)) for name, entry in entries}
    params, listed = C.llama_model_quantize_default_params(), as_entries(means)
    params.ftype, params.imatrix = file_type(recipe), listed
    if C.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params)):
        raise RuntimeError(f"llama.cpp cannot quantize {source.name} to {recipe}")


def divergence(source: Path, file: Path, text: Path) -> dict[str, Any]:
    """What `compare` says."""
    said: dict[str, Any] = json.loads(localinfer("compare", source, file, "-f", text, "--precision", "high", "--json"))
    return said


def main() -> None:
    """Make the source, the importance matrix and the files; a row for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="a name that was pulled, or a path")
    parser.add_argument("recipes", nargs="*", metavar="TYPE", help="default: Q4_K_M Q3_K_M Q2_K")
    parser.add_argument("--chunks", default="100", help="of 512 tokens, for the importance matrix (default: 100)")
    parser.add_argument("--text", type=Path, default=VARIED, help="what is compared on")
    arguments = parser.parse_args()
    print("| type | by | KL from the source | ratio | same top | bytes |\n|---|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        calibration, imatrix = Path(folder) / "calibration.txt", Path(folder) / "imatrix.gguf"
        topics = pydoc_data.topics.topics
        calibration.write_text("\n\n".join(topics[name] for name in sorted(topics)), encoding="utf-8")
        source = requantize(find(arguments.model), Path(folder) / "source.gguf", "F16", {})
        collect = ("-f", calibration, "--chunks", arguments.chunks, "--covariance", "-o", imatrix)
        localinfer("imatrix", source, *collect)
        for recipe in arguments.recipes or ("Q4_K_M", "Q3_K_M", "Q2_K"):
            base = 0.0
            for name in ("llama.cpp", *EFFORTS, "calibrate"):
                out = Path(folder) / f"{recipe}-{name}.gguf"
                if name == "llama.cpp":
                    by_llama_cpp(source, out, recipe, imatrix)
                elif name == "calibrate":
                    reading = ("--calibrate", calibration, "--calibrate-chunks", arguments.chunks)
                    localinfer("quantize", source, out, recipe, *reading)
                else:
                    localinfer("quantize", source, out, recipe, "--imatrix", imatrix, "--effort", name)
                found = divergence(source, out, arguments.text)
                mean, same = found["divergence"]["mean"], found["same_top"]["value"]
                base = base or mean["value"]
                distance, ratio = f"{mean['value']:.4f} ± {mean['error']:.4f}", mean["value"] / base
                print(
                    f"| {recipe} | {name} | {distance} | **{ratio:.2f}** | {same:.1%} | {out.stat().st_size:,} |",
                    flush=True,
                )
                out.unlink()


if __name__ == "__main__":
    main()
