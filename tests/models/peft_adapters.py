"""LoRA adapters of the reference models as PEFT saves them, and the logits that PEFT computes with them.

data/adapters/NAME has adapter_config.json, adapter_model.safetensors.xz and logits.npz, and for some models a second
adapter in the folder `second`. make_adapter_fixtures.py writes them.
"""

import lzma
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).parents[1] / "data" / "adapters"
NAMES = sorted(path.name for path in DATA.iterdir())
TENSORS = "adapter_model.safetensors"


def write(name: str, folder: Path) -> Path:
    """Write the adapter of a reference model, and the second one if there is one, below a folder, and return its
    path."""
    path = folder / name
    for source in (DATA / name, *(each for each in (DATA / name).iterdir() if each.is_dir())):
        target = path / source.relative_to(DATA / name)
        target.mkdir(parents=True)
        shutil.copy(source / "adapter_config.json", target)
        (target / TENSORS).write_bytes(lzma.decompress((source / f"{TENSORS}.xz").read_bytes()))
    return path


def compress(folder: Path) -> None:
    """Replace the tensors of an adapter that PEFT saved by a compressed file."""
    path = folder / TENSORS
    path.with_name(f"{TENSORS}.xz").write_bytes(lzma.compress(path.read_bytes(), preset=9))
    path.unlink()


def expected(name: str) -> dict[str, NDArray[np.float32]]:
    """Return PEFT's logits at the positions of the reference model: `whole`; `scaled`, with the factor `scale`; `both`
    with the second adapter if there is one."""
    with np.load(DATA / name / "logits.npz") as stored:
        return dict(stored)
