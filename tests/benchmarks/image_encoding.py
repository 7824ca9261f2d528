"""Measures how long it takes to encode an image with the shapes of published encoders, with random weights.

    python tests/benchmarks/image_encoding.py                          # all shapes; 2 GB of files, minutes
    python tests/benchmarks/image_encoding.py smolvlm-500m --rounds 5 --threads 2
    python tests/benchmarks/image_encoding.py --libmtmd                # beside libmtmd, in turns
    python tests/benchmarks/image_encoding.py --libmtmd --type Q8_0    # quantized

The input is an image of random pixels: gemma3 896 x 896, qwen3-vl-4b 1024 x 1024, and smolvlm-500m 512 x 512, of which
its processor makes 17 tiles of this size. Prints the median time of a run, the time to build the graph, and the memory
of the graph. Kernels are compiled before, and preprocessing is not timed. Needs the group `test`; `--libmtmd` also the
package llama_cpp with libmtmd.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent / "shapes"), str(ROOT / "tests/models")]

import image_encoders  # noqa: E402
from libmtmd_peer import Peer, compare_encoders, quantized  # noqa: E402
from tiny import tiny_llama  # noqa: E402

from localinfer.gguf.reader import open_gguf  # noqa: E402
from localinfer.machine.resources import default_threads  # noqa: E402
from localinfer.multimodal.encoder_graph.compiled_encoder import CompiledEncoder  # noqa: E402
from localinfer.multimodal.media import Image  # noqa: E402
from localinfer.multimodal.projector import make_processor  # noqa: E402
from localinfer.multimodal.projector_file import open_projector  # noqa: E402
from localinfer.options import Options  # noqa: E402


def write_projector(name: str, folder: Path, type: str) -> Path:
    """Return the file of an encoder, which is written unless it exists."""
    path = folder / f"mmproj-{name}.gguf"
    if not path.exists():
        image_encoders.write(name, folder)
    return path if type == "F16" else quantized(path, type)


def measure(name: str, path: Path, rounds: int, threads: int, *, with_peer: bool) -> str:
    """Return the lines for one shape. `path` is the file of the encoder."""
    shape, folder = image_encoders.SHAPES[name], path.parent
    file = open_projector(path, open_gguf(image_encoders.write_language_model(name, folder)))
    height, width = (count * shape.patch for count in shape.grid)
    image = Image(np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8))
    inputs = [each.patches for each in make_processor(file.f, Options())(image)]
    if shape.projector == "idefics3":  # in the prompt, as in libmtmd's rows, the overview follows the tiles
        inputs = [*inputs[1:], inputs[0]]
    begin = time.perf_counter()
    built = file.build(shape.grid, Options(threads=threads))
    build_seconds, seconds = time.perf_counter() - begin, []
    with CompiledEncoder(*built) as encoder:

        def encode() -> NDArray[np.float32]:
            return np.concatenate([encoder.run(patches) for patches in inputs])

        for _ in range(rounds):
            begin = time.perf_counter()
            encode()
            seconds.append(time.perf_counter() - begin)
        memory = encoder.graph.nbytes / 1e6
        line = f"{name}, {len(inputs)} tiles: {statistics.median(seconds):.2f} s"
        line += f", built in {1000 * build_seconds:.0f} ms, {memory:.0f} MB"
        if with_peer:
            width = file.embedding_length * (1 + file.deepstack)
            heads = {"n_head": width // 64, "n_head_kv": 1, "head_dim": 64}
            model = tiny_llama(folder / f"peer-{name}.gguf", n_embd=width, n_ff=128, n_layer=1, **heads)
            peer = Peer(model, path, image.pixels, folder, threads or default_threads())
            line += "\n    " + compare_encoders(encode, peer, rounds)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", help=f"of {', '.join(image_encoders.SHAPES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--type", default="F16", help="type of the matrices, such as Q8_0")
    parser.add_argument("--libmtmd", action="store_true", help="compare with libmtmd, in turns")
    parser.add_argument("--folder", type=Path, help="keeps the files for the next time")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.shapes or image_encoders.SHAPES:
            path = write_projector(name, folder, arguments.type)
            shown = measure(name, path, arguments.rounds, arguments.threads, with_peer=arguments.libmtmd)
            print(shown, flush=True)


if __name__ == "__main__":
    main()
