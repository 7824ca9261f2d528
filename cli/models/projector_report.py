"""What `localinfer inspect` says about a projector file: its encoders, and how many tokens an image becomes."""

from collections.abc import Iterator, Sequence

from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF

PROJECTOR = "clip"  # general.architecture
ANY_SIZE = 896  # pixels per side of an image whose tokens are shown for models without a size of their own
KINDS = {"vision": "images", "audio": "sounds"}
NUMBERS = {
    "block_count": "layers",
    "embedding_length": "embedding length",
    "attention.head_count": "attention heads",
    "projection_dim": "embedding length of the text model",
    "image_size": "image size",
    "patch_size": "patch size",
    "num_mel_bins": "mel bands",
}


def is_projector(f: GGUF) -> bool:
    """Return whether a file has an encoder and a projector instead of a text model."""
    return f.architecture == PROJECTOR


def projector_rows(f: GGUF) -> Iterator[Sequence[str]]:
    """Yield what the keys say about each encoder. Keys that are missing or of another type are left out."""
    for kind, inputs in KINDS.items():
        if f.metadata.get(f"clip.has_{kind}_encoder") is not True:
            continue
        name = f.metadata.get("clip.projector_type") or f.metadata.get(f"clip.{kind}.projector_type")
        yield f"encoder of {inputs}", printable(str(name), 40)
        for key, label in NUMBERS.items():
            value = f.metadata.get(f"clip.{kind}.{key}")
            if isinstance(value, int) and value:
                yield label, f"{value:,}"
        if kind == "vision":
            yield from image_rows(f)


def image_rows(f: GGUF) -> Iterator[Sequence[str]]:
    """Yield the number of tokens of a square image, or why there is none."""
    from localinfer.multimodal.preprocessing.processors import make_image_processor

    try:
        process = make_image_processor(f)
        side = process.parameters.image_size or ANY_SIZE
        grids = process.grids(side, side)
    except LocalInferError as error:
        yield "preprocessing", printable(str(error).removeprefix(f"{printable(str(f.path))}: "), 100)
        return
    tokens = sum(rows * columns for rows, columns in grids) // process.parameters.merge**2
    parts = f" in {len(grids)} parts" if len(grids) > 1 else ""
    yield f"tokens of an image of {side} x {side}", f"{tokens:,}{parts}"
