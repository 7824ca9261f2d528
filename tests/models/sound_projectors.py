"""Tiny projector files with sound encoders, and the output rows that `transformers` computes with them.

data/sound_projectors/NAME.gguf.xz is the file without its generated weights, NAME.npz has spectrograms and the rows of
each.
make_sound_projector_fixtures.py writes both.
"""

from dataclasses import dataclass
from pathlib import Path

import generated_weights
import gguf
import numpy as np
import projectors
from numpy.typing import NDArray

from localinfer.gguf.reader import open_gguf
from localinfer.multimodal.media import Sound
from localinfer.multimodal.projector_file import ProjectorFile, open_projector
from localinfer.multimodal.sounds.sound_input import Spectrogram

DATA = Path(__file__).parents[1] / "data" / "sound_projectors"
NAMES = sorted(path.name.removesuffix(".gguf.xz") for path in DATA.glob("*.gguf.xz"))


@dataclass(frozen=True, eq=False)
class Case:
    """A spectrogram and the output rows of the encoder."""

    spectrogram: Spectrogram
    rows: NDArray[np.float32]


class ReferenceProcessor:
    """Stands for a processor: returns the spectrogram of a case for each sound."""

    def __init__(self, case: Case) -> None:
        self._spectrogram = case.spectrogram

    def __call__(self, sound: Sound) -> Spectrogram:
        return self._spectrogram

    def n_frames(self, n_samples: int) -> int:
        return self._spectrogram.n_frames


def write(name: str, folder: Path) -> Path:
    """Write a projector file into a folder and return its path."""
    path = folder / f"mmproj-{name}.gguf"
    path.write_bytes(generated_weights.unpack((DATA / f"{name}.gguf.xz").read_bytes()))
    return path


def cases(name: str) -> list[Case]:
    """Return the spectrograms of a projector, and their rows."""
    with np.load(DATA / f"{name}.npz") as found:
        return [
            Case(
                Spectrogram(found[f"features_{number}"].astype(np.float32) / 2, int(found[f"frames_{number}"])),
                found[f"rows_{number}"],
            )
            for number in range(sum(key.startswith("frames_") for key in found))
        ]


def language_model(name: str, folder: Path, **changes: int) -> Path:
    """Write a file with the metadata of the projector's language model that matters here, and return its path."""
    with np.load(DATA / f"{name}.npz") as found:
        length = int(found["embedding_length"])
        zeros = np.zeros((0, length), np.float32)
        no_image = projectors.Case((0, 0), zeros, zeros)
        reference = projectors.Reference(str(found["architecture"]), length, [no_image])
    return projectors.language_model(reference, folder, **changes)


def opened(name: str, folder: Path) -> ProjectorFile:
    """Return the open projector file."""
    return open_projector(write(name, folder), open_gguf(language_model(name, folder)))


def write_both(image: str, sound: str, folder: Path) -> Path:
    """Write a projector file with the encoders of two others, and return its path."""
    path, sources = folder / "both.gguf", {"vision": projectors.write(image, folder), "audio": write(sound, folder)}
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    for kind, source in sources.items():
        reader = gguf.GGUFReader(source)
        writer.add_bool(f"clip.has_{kind}_encoder", True)
        writer.add_string(f"clip.{kind}.projector_type", image if kind == "vision" else sound)
        for name, field in reader.fields.items():
            if name.startswith(f"clip.{kind}."):
                is_list = field.types[0] == gguf.GGUFValueType.ARRAY
                writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if is_list else None)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
