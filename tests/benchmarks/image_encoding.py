"""Measures how long it takes to encode an image with the shapes of published encoders, with random weights in F16.

    python tests/benchmarks/image_encoding.py                          # all shapes; 2 GB of files, minutes
    python tests/benchmarks/image_encoding.py smolvlm-500m --rounds 5 --threads 2

The input is the patches of one image (gemma3 896 x 896 pixels, qwen3-vl-4b 1024 x 1024) or of one tile (smolvlm-500m
512 x 512). Prints a Markdown table: the median time of a run, the time to build the graph, and the memory of the graph.
Kernels are compiled before. Needs the group `test`.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent / "shapes")]

import image_encoders  # noqa: E402

from localinfer.gguf.reader import open_gguf  # noqa: E402
from localinfer.multimodal.encoder_graph.compiled_encoder import CompiledEncoder  # noqa: E402
from localinfer.multimodal.projector_file import open_projector  # noqa: E402
from localinfer.options import Options  # noqa: E402


def measure(name: str, folder: Path, rounds: int, threads: int) -> str:
    """Return the row of the table for one shape."""
    shape, path = image_encoders.SHAPES[name], folder / f"mmproj-{name}.gguf"
    if not path.exists():
        image_encoders.write(name, folder)
    file = open_projector(path, open_gguf(image_encoders.write_language_model(name, folder)))
    (rows, columns), seconds = shape.grid, []
    patches = np.random.default_rng(1).standard_normal((rows * columns, 3 * shape.patch**2), np.float32)
    begin = time.perf_counter()
    built = file.build(shape.grid, Options(threads=threads))
    build_seconds = time.perf_counter() - begin
    with CompiledEncoder(*built) as encoder:
        for _ in range(rounds):
            begin = time.perf_counter()
            encoder.run(patches)
            seconds.append(time.perf_counter() - begin)
        megabytes = encoder.graph.nbytes / 1e6
    cells = f"{rows} x {columns}", f"{statistics.median(seconds):.2f} s", f"{1000 * build_seconds:.0f} ms"
    return f"| {name} | {' | '.join(cells)} | {megabytes:.0f} MB |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", help=f"of {', '.join(image_encoders.SHAPES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--folder", type=Path, help="keeps the files for the next time")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        print("| encoder | patches | encode | build | memory |\n|---|---|---|---|---|")
        for name in arguments.shapes or image_encoders.SHAPES:
            print(measure(name, folder, arguments.rounds, arguments.threads), flush=True)


if __name__ == "__main__":
    main()
