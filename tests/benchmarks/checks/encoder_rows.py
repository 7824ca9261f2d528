"""Compares the rows of image and sound encoders with those of libmtmd, for the tests' tiny projector files.

    python tests/benchmarks/checks/encoder_rows.py                  # all that libmtmd loads
    python tests/benchmarks/checks/encoder_rows.py gemma3 ultravox

Both get the same image of random pixels, whose size needs no resizing, or the same sound. Prints a Markdown table with
the largest difference as a fraction of the largest value, and why libmtmd refuses a file. The exit code is 1 if a
difference is above the limit. Needs the group `test`, and the package llama_cpp with libmtmd.
"""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS.parent), str(TESTS / "models"), str(TESTS / "oracles"), str(TESTS / "benchmarks")]

import projectors  # noqa: E402
import sound_projectors  # noqa: E402
from libmtmd_peer import Peer, PeerError  # noqa: E402
from tiny import tiny_llama, tiny_qwen2  # noqa: E402

from localinfer.errors import LocalInferError  # noqa: E402
from localinfer.gguf.reader import open_gguf  # noqa: E402
from localinfer.multimodal.media import SAMPLE_RATE, Image, Sound  # noqa: E402
from localinfer.multimodal.projector import Projector  # noqa: E402
from localinfer.multimodal.projector_file import ProjectorFile, open_projector  # noqa: E402
from localinfer.options import Options  # noqa: E402
from localinfer.runtime.media_embeddings import MediaEmbeddings  # noqa: E402

LIMIT = 1e-3
SECONDS = 7.3
Rows = NDArray[np.float32]


def rows_of(file: ProjectorFile, media: Image | Sound) -> Rows:
    """Return our rows, without the texts around them."""
    with contextlib.closing(Projector(file, Options(threads=2))) as projector:
        return np.concatenate([part.rows for part in projector.encode(media) if isinstance(part, MediaEmbeddings)])


def image_case(name: str, folder: Path) -> tuple[Path, ProjectorFile, Image]:
    """Return a projector file, opened, and an image with the size of one of its reference images."""
    reference = projectors.reference(name)
    path = projectors.write(name, folder)
    file = open_projector(path, open_gguf(projectors.language_model(reference, folder)))
    patch = file.f.get("clip.vision.patch_size", int)
    height, width = (patch * count for count in reference.cases[0].grid)
    return path, file, Image(np.random.default_rng(2).integers(0, 256, (height, width, 3), np.uint8))


def sound_case(name: str, folder: Path, model: Path) -> tuple[Path, ProjectorFile, Sound]:
    """Return a projector file, opened, and a sound."""
    path = sound_projectors.write(name, folder)
    t = np.arange(int(SECONDS * SAMPLE_RATE)) / SAMPLE_RATE
    samples = 0.3 * np.sin(2 * np.pi * (200 + 90 * np.sin(t)) * t) * (np.sin(3 * t) > -0.5)
    return path, open_projector(path, open_gguf(model)), Sound(samples.astype(np.float32))


def compare(name: str, folder: Path, *, is_image: bool) -> tuple[str, float]:
    """Return a cell of the table, and the difference; 0 if libmtmd refuses the file."""
    make: Callable[..., Path] = tiny_qwen2 if name.startswith("qwen2a") else tiny_llama
    sizes = {"n_ff": 128, "n_head": 1, "n_head_kv": 1, "n_layer": 1}
    if is_image:
        path, file, media = image_case(name, folder)
        width, array = file.embedding_length * (1 + file.deepstack), media.pixels
        model = make(folder / "peer.gguf", n_embd=width, **sizes)
    else:
        length = sound_projectors.cases(name)[0].rows.shape[1]
        model = make(folder / "peer.gguf", n_embd=length, **sizes)
        path, file, sound = sound_case(name, folder, model)
        media, array = sound, sound.samples
    try:
        peer = Peer(model, path, array, folder, threads=2)
    except PeerError as error:
        return f"refused: {error}", 0.0
    with contextlib.closing(peer):
        ours = rows_of(file, media)
        if ours.shape != peer.rows.shape:
            return f"rows {ours.shape}, libmtmd {peer.rows.shape}", np.inf
        difference = float(np.abs(ours - peer.rows).max() / np.abs(peer.rows).max())
        return f"{len(ours)} rows, {difference:.1e}", difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="projector files; all without")
    names = parser.parse_args().names or [*projectors.NAMES, *sound_projectors.NAMES]
    print("| encoder | difference to libmtmd |\n|---|---|")
    differences = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                shown, difference = compare(name, Path(folder), is_image=name in projectors.NAMES)
            except LocalInferError as error:
                shown, difference = f"error: {error}", np.inf
        print(f"| {name} | {shown} |", flush=True)
        differences.append(difference)
    sys.exit(max(differences) > LIMIT)


if __name__ == "__main__":
    main()
