"""Compares the rows of image and sound encoders with those of libmtmd, for the tests' tiny projector files.

    python tests/benchmarks/checks/encoder_rows.py                  # all that libmtmd loads
    python tests/benchmarks/checks/encoder_rows.py gemma3 ultravox

Both get the same image of random pixels, whose size needs no resizing, or the same sound. Prints a Markdown table with
the largest difference as a fraction of the largest value, and why libmtmd refuses a file. The exit code is 1 if a
difference is above the limit, unless WHY has its cause. Needs the group `test`, and the package llama_cpp with libmtmd.
"""

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TESTS = Path(__file__).parents[2]
FOLDERS = TESTS.parent, TESTS, TESTS / "models", TESTS / "oracles", TESTS / "benchmarks"
sys.path[:0] = map(str, FOLDERS)

import projectors  # noqa: E402
import sound_projectors  # noqa: E402
from fuzz.mutable_gguf import MutableGGUF  # noqa: E402
from libmtmd_peer import Peer, PeerError  # noqa: E402
from tiny import tiny_llama, tiny_qwen2  # noqa: E402

from localinfer.errors import LocalInferError  # noqa: E402
from localinfer.gguf.reader import open_gguf  # noqa: E402
from localinfer.multimodal.media import SAMPLE_RATE, Image, Sound  # noqa: E402
from localinfer.multimodal.projector import Projector  # noqa: E402
from localinfer.multimodal.projector_file import ProjectorFile, open_projector  # noqa: E402
from localinfer.options import Options  # noqa: E402
from localinfer.runtime.media.media_embeddings import MediaEmbeddings  # noqa: E402

LIMIT = 1e-3
SECONDS = 30  # libmtmd pads shorter sounds to 30 s, and hears the padding
MAX_TOKENS = 100  # of images of Gemma 4, which ours enlarges to the limit
SIZES = {  # libmtmd enlarges smaller images of these
    **dict.fromkeys(("lightonocr", "mistral3", "pixtral"), (48, 64)),
    "glm-ocr": (56, 56), "minimax_m3": (24, 32), "qwen4exp": (24, 32),
    **dict.fromkeys(("gemma4uv", "gemma4v", "gemma4v_unclipped"), (120, 120)),
}
FLATTENED = "libmtmd interpolates the positions of CLIP along the wrong axes; without them, 7e-4"
CLASS_LAST = "libmtmd puts the class row behind the patches, but the position embeddings begin with its"
WHY = {  # differences that are libmtmd's own, so that ours cannot be equal, and what it refuses for such reasons
    "cogvlm": f"{CLASS_LAST}, and it has another GELU; with both, 6e-4",
    "cogvlm2": "libmtmd has no convolution between the encoder and the projector",
    "deepseekocr": FLATTENED,
    "deepseekocr-large": FLATTENED,
    "deepseekocr2": "libmtmd interpolates positions with other weights; with its ones, 2e-4",
    "gemma3nv": "libmtmd adds tensors with the size of the published model",
    **dict.fromkeys(
        ("gemma4v", "gemma4v_unclipped"),
        "libmtmd has another GELU, and rounds pixels to F16; with its GELU, 2e-3 and 8e-4, with its pixels, too, "
        "4e-4 and 2e-4",
    ),
    "gemma4a_of_odd_size": "libmtmd pads for convolutions of 5 rows",
    "gemma4a": "libmtmd raises energies to a floor, which the model's processor adds; if ours does so, 5e-4",
    **dict.fromkeys(("ultravox", "voxtral"), "libmtmd counts a row less than it makes"),
    **dict.fromkeys(("granite-vision", "llava-next"), "libmtmd pads tiles, and has no newlines"),
    **dict.fromkeys(("hunyuanvl", "hunyuanvl-large"), "libmtmd needs a language model with M-RoPE"),
    "granite_speech_of_odd_size": "libmtmd pads for convolutions of an odd width",
    "granite_speech_plus": "libmtmd keeps rows of the middle layer without the recognition",
    "internvl": CLASS_LAST,
    **dict.fromkeys(("kimivl", "kimivl-odd"), "libmtmd has the rotary positions of columns and rows in halves"),
    **dict.fromkeys(("lfm2a", "lfm2a_of_odd_size"), "libmtmd needs a larger table that it does not use"),
    "mlp": "as internvl, and libmtmd evaluates one layer less than the file has",
    **dict.fromkeys(("minicpm-v", "minicpm-v4.5"), "libmtmd needs positions of 70 x 70 patches"),
    "llama4": "libmtmd warns that its results are degraded",
    **dict.fromkeys(("parakeet", "parakeet_of_odd_size"), "libmtmd needs an encoder of images in the file"),
    **dict.fromkeys(("qwen2_5o", "qwen2_5o_of_odd_size"), "rows of libmtmd attend to all 30 s, not to 2"),
    "qwen3a": "rows of libmtmd attend to all 30 s, not to 8",
}
Rows = NDArray[np.float32]


def rows_of(file: ProjectorFile, media: Image | Sound) -> Rows:
    """Return our rows, without the texts around them."""
    most = MAX_TOKENS if file.projector_type.startswith("gemma4") else 0
    with contextlib.closing(Projector(file, Options(threads=2, image_max_tokens=most))) as projector:
        return np.concatenate([part.rows for part in projector.encode(media) if isinstance(part, MediaEmbeddings)])


def image_case(name: str, folder: Path) -> tuple[Path, ProjectorFile, Image]:
    """Return a projector file, opened, and an image, as large as its first reference image or as SIZES says."""
    reference = projectors.reference(name)
    path = projectors.write(name, folder)
    file = open_projector(path, open_gguf(projectors.language_model(reference, folder)))
    patch = file.f.get("clip.vision.patch_size", int)
    height, width = SIZES.get(name) or (patch * count for count in reference.cases[0].grid)
    return path, file, Image(np.random.default_rng(2).integers(0, 256, (height, width, 3), np.uint8))


def sound_case(name: str, folder: Path) -> tuple[Path, ProjectorFile, Sound]:
    """Return a projector file, opened, and a sound."""
    path = sound_projectors.write(name, folder)
    t = np.arange(int(SECONDS * SAMPLE_RATE)) / SAMPLE_RATE
    samples = 0.3 * np.sin(2 * np.pi * (200 + 90 * np.sin(t)) * t) * (np.sin(3 * t) > -0.5)
    samples[-SAMPLE_RATE:] = 0  # what follows the end is reflected by Whisper, and silent in libmtmd
    return path, sound_projectors.opened(name, folder), Sound(samples.astype(np.float32))


def compare(name: str, folder: Path) -> tuple[str, float]:
    """Return a cell of the table, and the difference; 0 if libmtmd refuses the file."""
    media: Image | Sound
    if name in projectors.NAMES:
        path, file, image = image_case(name, folder)
        media, array = image, image.pixels
    else:
        path, file, sound = sound_case(name, folder)
        media, array = sound, sound.samples
    width = file.embedding_length * (1 + file.deepstack)
    make = tiny_qwen2 if name.startswith("qwen2a") else tiny_llama
    model = make(folder / "peer.gguf", n_embd=width, n_ff=128, n_head=1, n_head_kv=1, head_dim=width, n_layer=1)
    projector = with_known_norms(path) if name.startswith("granite_speech") else path
    try:
        peer = Peer(model, projector, array, folder, threads=2)
    except PeerError as error:
        return f"refused: {error}", 0.0
    with contextlib.closing(peer):
        ours = rows_of(file, media)
    if len(ours) > len(peer.rows) or ours.shape[1] != peer.rows.shape[1]:
        return f"rows {ours.shape}, libmtmd {peer.rows.shape}", np.inf
    difference = float(np.abs(ours - peer.rows[: len(ours)]).max() / np.abs(peer.rows).max())
    return f"{len(ours)} rows, {difference:.1e}", difference


def with_known_norms(path: Path) -> Path:
    """Write a copy of a file in which norms have the name that libmtmd reads: its converter writes another one."""
    f = MutableGGUF.read(path)
    for tensor in f.tensors:
        tensor.name = tensor.name.replace(b"conv_norm_var", b"conv_norm")
    copy = path.with_name("peer-mmproj.gguf")
    copy.write_bytes(f.to_bytes())
    return copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="projector files; all without")
    names = parser.parse_args().names or [*projectors.NAMES, *sound_projectors.NAMES]
    print("| encoder | difference to libmtmd |\n|---|---|")
    differences = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                shown, difference = compare(name, Path(folder))
            except LocalInferError as error:
                shown, difference = f"error: {error}", np.inf
        print(f"| {name} | {shown}{': ' + WHY[name] if name in WHY else ''} |", flush=True)
        differences.append(0.0 if name in WHY else difference)
    sys.exit(max(differences) > LIMIT)


if __name__ == "__main__":
    main()
