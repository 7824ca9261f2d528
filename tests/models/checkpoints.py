"""The tiny checkpoints of data/checkpoints: where they are, copies to damage, and their GGUF files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localinfer.checkpoint import open_checkpoint
from localinfer.files.source import SourceTensor
from localinfer.quantizing.quantize import encoders, quantize
from localinfer.quantizing.recipes import may_change
from quant import ggml

CHECKPOINTS = Path(__file__).parents[1] / "data" / "checkpoints"
NAMES = sorted(folder.name for folder in CHECKPOINTS.iterdir())
F32 = 0


def copied(name: str, folder: Path) -> Path:
    """A copy of a checkpoint in that folder."""
    return Path(shutil.copytree(CHECKPOINTS / name, folder / name))


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change a JSON file in place."""
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def as_f32(checkpoint: Path, out: Path) -> Path:
    """Its GGUF file, with all tensors in F32."""
    return as_type(checkpoint, out, "F32")


def as_type(checkpoint: Path, out: Path, type: str, *, target: Path | None = None) -> Path:
    """Its GGUF file, with matrices in this type; F32 is what a recipe keeps, and rows that are no whole blocks."""
    source = open_checkpoint(checkpoint, target)
    number, block = next((number, each) for number, each in ggml.TYPES.items() if each.name == type)

    def fits(tensor: SourceTensor) -> bool:
        return may_change(tensor) and tensor.shape[-1] % block.elements == 0

    types = {name: number if fits(tensor) else kept(tensor) for name, tensor in source.tensors.items()}
    quantize(source, out, types, encoder_of=encoders("fast", {}))
    return out


def kept(tensor: SourceTensor) -> int:
    """The type of what no recipe changes: of numbers that are whole, their own."""
    return tensor.type if tensor.type_name == "I64" else F32
