"""Tiny projector files, and the output rows that `transformers` computes with them.

data/projectors/NAME.gguf.xz is the file without its generated weights, NAME.npz has images as patches, in sixteenths,
and the rows of each, and for some projectors every third row of whole images, which consist of several views.
make_encoder_fixtures.py writes both.
"""

from dataclasses import dataclass, field
from pathlib import Path

import generated_weights
import gguf
import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).parents[1] / "data" / "projectors"
NAMES = sorted(path.name.removesuffix(".gguf.xz") for path in DATA.glob("*.gguf.xz"))
Floats = NDArray[np.float32]
EVERY = 3  # of the rows of whole images, this many share one that is stored


@dataclass(frozen=True, eq=False)
class Case:
    """An image as patches in a grid, and the output rows of the encoder."""

    grid: tuple[int, int]
    patches: Floats
    rows: Floats


@dataclass(frozen=True, eq=False)
class WholeImage:
    """The number of output rows of an image that consists of several views, and every third of them."""

    n_rows: int
    some_rows: Floats


@dataclass(frozen=True, eq=False)
class Reference:
    """What transformers computed with the encoder of a language model of this architecture."""

    architecture: str
    embedding_length: int
    cases: list[Case]
    images: dict[int, WholeImage] = field(default_factory=dict)  # made images, by number

    @property
    def deepstack(self) -> int:
        """The number of layers of the language model to which the encoder adds rows."""
        return self.cases[0].rows.shape[1] // self.embedding_length - 1


def write(name: str, folder: Path) -> Path:
    """Write a projector file into a folder and return its path."""
    path = folder / f"mmproj-{name}.gguf"
    path.write_bytes(generated_weights.unpack((DATA / f"{name}.gguf.xz").read_bytes()))
    return path


def reference(name: str) -> Reference:
    """Return the images of a projector, and their rows."""
    with np.load(DATA / f"{name}.npz") as found:
        cases = [
            Case(
                tuple(found[f"grid_{number}"].tolist()),
                found[f"patches_{number}"].astype(np.float32) / 16,
                found[f"rows_{number}"],
            )
            for number in range(sum(key.startswith("grid_") for key in found))
        ]
        numbers = [int(key.removeprefix("image_rows_")) for key in found if key.startswith("image_rows_")]
        images = {
            each: WholeImage(int(found[f"image_length_{each}"]), found[f"image_rows_{each}"]) for each in numbers
        }
        return Reference(str(found["architecture"]), int(found["embedding_length"]), cases, images)


def language_model(reference: Reference, folder: Path, *, has_mrope: bool = True, **changes: int) -> Path:
    """Write a file with the metadata of the projector's language model that matters here, and return its path."""
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, reference.architecture)
    lengths = {"embedding_length": reference.embedding_length, "n_deepstack_layers": reference.deepstack}
    for key, value in (lengths | changes).items():
        writer.add_uint32(f"{reference.architecture}.{key}", value)
    if has_mrope:
        writer.add_rope_dimension_sections([8, 12, 12, 0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
