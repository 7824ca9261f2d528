"""Files of tiny models with a head that predicts the token behind the next one: a proof's checkpoint, with one more
block, which has the weights of its last one with attention; or with a head in a file of its own (`eagle3_heads`)."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import eagle3_heads
import numpy as np
import proofs
from checkpoints import F32, as_type
from numpy.typing import NDArray

from localinfer.checkpoint import open_checkpoint
from localinfer.files.source import Field, SourceTensor
from localinfer.quantizing.quantize import encoders, quantize
from localinfer.quantizing.recipes import may_change
from quant import ggml

NAMES = ["deepseek3", "glm4moe", "qwen3", "qwen35", "qwen3next"]  # of proofs: each has another block


def with_head(name: str, folder: Path, type: str, *, own: bool = False) -> Path:
    """The GGUF file; the head has an output layer and an embedding of its `own`, or those of the model."""
    source, blocks = open_checkpoint(proofs.checkpoint(name, folder)), proofs.described(name)["n_layer"]
    architecture, tensors = proofs.architecture(name), dict(source.tensors)
    fields = {"nextn_predict_layers": Field.uint32(1), "block_count": Field.uint32(blocks + 1)}
    last = max(int(each.split(".")[1]) for each in tensors if each.endswith("attn_output.weight"))
    for each in source.tensors.values():
        if each.name.startswith(f"blk.{last}."):
            copied = replace(each, name=each.name.replace(f"blk.{last}.", f"blk.{blocks}."))
            tensors[copied.name] = copied
    n_vocab, n = tensors["token_embd.weight"].shape
    shapes: dict[str, tuple[int, ...]] = {"eh_proj": (n, 2 * n), "enorm": (n,), "hnorm": (n,), "shared_head_norm": (n,)}
    shapes |= {"embed_tokens": (n_vocab, n), "shared_head_head": (n_vocab, n)} if own else {}
    for number, (each, shape) in enumerate(shapes.items()):
        whole = f"blk.{blocks}.nextn.{each}.weight"
        tensors[whole] = SourceTensor(whole, shape, F32, partial(random_bytes, shape, number))
    named = {f"{architecture}.{key}": field for key, field in fields.items()}
    source = replace(source, fields=dict(source.fields) | named, tensors=tensors)
    wanted = next((number, each) for number, each in ggml.TYPES.items() if each.name == type)

    def fits(tensor: SourceTensor) -> bool:
        return may_change(tensor) and tensor.shape[-1] % wanted[1].elements == 0

    types = {each.name: wanted[0] if fits(each) else F32 for each in tensors.values()}
    out = folder / f"{name}.gguf"
    quantize(source, out, types, encoder_of=encoders("fast", {}))
    return out


def random_bytes(shape: tuple[int, ...], seed: int) -> NDArray[np.uint8]:
    """Norms lie around 1; matrices keep the size of what they are given."""
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    values = 1 + values / 8 if len(shape) == 1 else values * np.float32(shape[-1] ** -0.5)
    return values.view(np.uint8).reshape(-1)


@dataclass(frozen=True)
class Pair:
    model: Path
    head: Path


def beside(name: str, folder: Path, type: str = "F32") -> Pair:
    """A model and a head in a file of its own, with matrices in this type."""
    model = proofs.checkpoint(eagle3_heads.described(name)["model"], folder)
    head = eagle3_heads.checkpoint(name, folder)
    return Pair(as_type(model, folder / "model.gguf", type), as_type(head, folder / f"{name}.gguf", type, target=model))
