"""The tiny checkpoints of data/checkpoints: where they are, copies to damage, and their GGUF files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localinfer.conversion import open_checkpoint
from localinfer.gguf.source import SourceTensor
from localinfer.quantization.quantize import make_encoder_factory, quantize
from localinfer.quantization.recipes import is_quantizable
from quant import ggml

CHECKPOINTS = Path(__file__).parents[1] / "data" / "checkpoints"
NAMES = sorted(folder.name for folder in CHECKPOINTS.iterdir())
F32 = 0


def copy_checkpoint(name: str, folder: Path) -> Path:
    """Copy a checkpoint to a folder and return its path."""
    return Path(shutil.copytree(CHECKPOINTS / name, folder / name))


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change a JSON file in place and return its path."""
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def as_f32(checkpoint: Path, out: Path) -> Path:
    """Convert a checkpoint to a GGUF file with all tensors in F32."""
    return as_type(checkpoint, out, "F32")


def as_type(checkpoint: Path, out: Path, type: str, *, target: Path | None = None) -> Path:
    """Convert a checkpoint to a GGUF file with matrices in this type. Tensors that recipes do not quantize, and rows
    that are not a multiple of the block size, stay F32.
    """
    source = open_checkpoint(checkpoint, target)
    number = ggml.TYPE_NUMBERS[type]
    block = ggml.TYPES[number]

    def fits(tensor: SourceTensor) -> bool:
        return is_quantizable(tensor) and tensor.shape[-1] % block.elements == 0

    types = {name: number if fits(tensor) else unquantized_type(tensor) for name, tensor in source.tensors.items()}
    quantize(source, out, types, encoder_factory=make_encoder_factory("fast", {}))
    return out


def unquantized_type(tensor: SourceTensor) -> int:
    """Return the type of a tensor that is not quantized: its own for integers, else F32."""
    return tensor.type if tensor.type_name in ("I32", "I64") else F32
