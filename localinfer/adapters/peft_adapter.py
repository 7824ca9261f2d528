"""LoRA adapters of PEFT: adapter_config.json and adapter_model.safetensors, in a folder of their own.

The names of a checkpoint's tensors become those of GGUF as in the conversion of checkpoints. Where that reorders the
rows of a matrix, the rows of B are reordered, because (R B) A = R (B A) for any reordering R of rows. The factor is
alpha / rank, or alpha / sqrt(rank) with rank-stabilized LoRA (rsLoRA; Kalajdzievski, 2023).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.adapters.stored_pairs import LoraFile, StoredPair
from localinfer.adapters.target import Target
from localinfer.conversion import tensor_mapping
from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures import architectures_named
from localinfer.conversion.checkpoint_folder import CheckpointFolder, JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.conversion.rope import RopeMetadata
from localinfer.conversion.tensor_formats import reorder
from localinfer.conversion.tensor_formats.safetensors_file import StackedTensor, StoredTensor, read_file
from localinfer.conversion.tensor_formats.values import native_values, to_bytes
from localinfer.conversion.tensors import TYPES
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.source import SourceTensor
from localinfer.graph.properties.adapters import EMBEDDINGS

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BLOCK = re.compile(r"blk\.(\d+)\.")
MAX_REPETITIONS = 3  # in a pattern of module names
PREFIX, COPY, COPIES = "base_model.model.", ".base_layer.weight", "copies"
KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?:(?P<embedding>embedding_)?(?P<side>[AB]))(?:\.weight)?")
UNSUPPORTED = {  # key of adapter_config.json: what it turns on
    "use_dora": "DoRA", "use_qalora": "QALoRA", "alora_invocation_tokens": "activated LoRA (aLoRA)",
    "modules_to_save": "training of whole modules", "layer_replication": "replication of layers",
    "trainable_token_indices": "training of single tokens", "lora_bias": "a bias of B", "use_bdlora": "BD-LoRA",
    "kasa_config": "KaSA", "arrow_config": "Arrow", "velora_config": "VeLoRA", "monteclora_config": "MonteCLoRA",
    "target_parameters": "adapters of parameters without a module",
}  # fmt: skip
CHANGED_BASE = ("pissa", "olora", "corda", "lora_ga")  # initializations that change the weights of the model, too
ROW_REORDERS = (
    reorder.interleave_query_halves, reorder.interleave_key_halves, reorder.gqa_queries, reorder.gqa_keys,
    reorder.gqa_values, reorder.group_qkv, reorder.group_gqa_qkv, reorder.first_half, reorder.second_half,
)  # fmt: skip

Sides = Mapping[str, StoredTensor]  # by the name of the checkpoint's tensor


@dataclass(frozen=True)
class Scaling:
    """The factors of an adapter: alpha, which may differ by module, and whether it is divided by sqrt(rank)."""

    alpha: float
    patterns: Mapping[str, float]
    is_rank_stabilized: bool

    def factor(self, module: str, rank: int) -> float:
        """Return the factor of a module with this rank."""
        matching = (self.patterns[each] for each in self.patterns if re.match(rf"(.*\.)?({each})$", module))
        return next(matching, self.alpha) / (math.sqrt(rank) if self.is_rank_stabilized else rank)


def open_peft_adapter(path: Path, target: Target) -> LoraFile:
    """Open an adapter: its folder, or the safetensors file in it.

    Raises LocalInferError for a damaged adapter, or one of another model; UnsupportedError for what is not LoRA alone,
    naming it.
    """
    folder = CheckpointFolder(path if path.is_dir() else path.parent)
    config, weights = folder.json(CONFIG), folder.find(WEIGHTS if path.is_dir() else path.name)
    scaling = read_scaling(config)
    if weights is None:
        raise folder.error(f"there is no {WEIGHTS}")
    modules, sides = read_sides(weights)
    copies = sides.pop(COPIES)
    architecture, by_side = find_architecture(target, sides, weights)
    if by_side["A"].keys() != by_side["B"].keys():
        odd = min(by_side["A"].keys() ^ by_side["B"].keys())
        stored = by_side["A"].get(odd) or by_side["B"][odd]
        raise stored.error("the other matrix of the pair is missing")
    for name, stored in tensor_mapping.map_tensors(architecture, hparams(target), copies).items():
        if stored.shape != target.shape(name):
            raise stored.error("has another shape than in the model: the vocabulary was changed", UnsupportedError)
    pairs: dict[str, StoredPair] = {}
    for name, a in by_side["A"].items():
        b = by_side["B"][name]
        rank = b.shape[-1] if len(b.shape) > 1 else 1
        factor = scaling.factor(modules[a.name], max(rank, 1))
        pairs |= {each: StoredPair(*both, factor) for each, both in convert(name, a, b, architecture, target).items()}
    return LoraFile(weights, pairs, (*folder.files,))


def read_scaling(config: JsonObject) -> Scaling:
    """Return the factors. Raises UnsupportedError for a configuration that means more than they say."""
    kind = config.get("peft_type", str)
    if kind != "LORA":
        raise config.error("peft_type", f"{printable(kind, 40)} is not supported, only LORA", UnsupportedError)
    for key, what in UNSUPPORTED.items():
        if config.values.get(key):
            raise config.error(key, f"{what} is not supported", UnsupportedError)
    if config.get("bias", str, "none") != "none":
        raise config.error("bias", "training of biases is not supported", UnsupportedError)
    initial = config.values.get("init_lora_weights")
    if isinstance(initial, str) and initial.lower().startswith(CHANGED_BASE):
        what = f"{printable(initial, 40)} changes the weights of the model, too, which is not supported"
        raise config.error("init_lora_weights", what, UnsupportedError)
    patterns = config.child("alpha_pattern")
    alphas = {key: patterns.get(key, float) for key in patterns.values}
    for key in alphas:
        require_pattern(patterns, key)
    return Scaling(config.get("lora_alpha", float), alphas, config.get("use_rslora", bool, False))


def require_pattern(patterns: JsonObject, key: str) -> None:
    """Raise LocalInferError unless the key names modules. A pattern may repeat few characters and no groups, because
    matching could take forever."""
    repeats, groups = len(re.findall(r"[*+]", key)), len(re.findall(r"\)[*+]", key))
    if not re.fullmatch(r"[\w.\\^$|()\[\]*+-]{1,200}", key) or groups or repeats > MAX_REPETITIONS:
        raise patterns.error(key, "is not the name of a module")
    try:
        re.compile(key)
    except re.error as error:
        raise patterns.error(key, f"is not a pattern: {error}") from None


def read_sides(weights: Path) -> tuple[dict[str, str], dict[str, dict[str, StoredTensor]]]:
    """Return the modules by the names of the tensors, and the matrices A and B by the names of the checkpoint's
    tensors, with copies of the model's embeddings, which PEFT adds. Raises UnsupportedError for other tensors."""
    sides: dict[str, dict[str, StoredTensor]] = {"A": {}, "B": {}, COPIES: {}}
    modules = {}
    for stored in read_file(weights):
        match = KEY.fullmatch(stored.name)
        if stored.name.startswith(PREFIX) and stored.name.endswith(COPY):
            sides[COPIES][stored.name.removeprefix(PREFIX).removesuffix(COPY) + ".weight"] = stored
            continue
        if match is None:
            raise stored.error("is no matrix of LoRA, which is not supported", UnsupportedError)
        if stored.dtype not in TYPES:
            raise stored.error(f"type {stored.dtype} is not supported (only {', '.join(TYPES)})", UnsupportedError)
        if len(stored.shape) != 2 or 0 in stored.shape:
            raise stored.error(f"has shape {list(stored.shape)}, which is no matrix")
        sides[match["side"]][f"{match['module']}.weight"] = stored
        modules[stored.name] = match["module"]
    return modules, sides


def find_architecture(
    target: Target, sides: Mapping[str, Sides], weights: Path
) -> tuple[Architecture, dict[str, dict[str, StoredTensor | StackedTensor]]]:
    """Return the conversion whose names fit, and the matrices A and B by GGUF's names."""
    numbers = hparams(target)
    candidates, problem = architectures_named(target.architecture), None
    for architecture in candidates:
        try:
            found = {side: tensor_mapping.map_tensors(architecture, numbers, each) for side, each in sides.items()}
        except UnsupportedError as error:
            problem = problem or error
        else:
            return architecture, found
    what = f"adapters of PEFT for {printable(target.architecture, 80)} are not supported"
    raise LocalInferError(str(problem)) if problem else UnsupportedError(f"{printable(str(weights))}: {what}")


def convert(
    name: str, a: StoredTensor | StackedTensor, b: StoredTensor | StackedTensor, architecture: Architecture,
    target: Target,
) -> dict[str, tuple[SourceTensor, SourceTensor]]:  # fmt: skip
    """Return A and B of each GGUF tensor that is made of a tensor of the checkpoint.

    Raises UnsupportedError if the conversion does not only reorder rows.
    """
    if architecture.folded_multipliers or name.removesuffix(".weight") == name:
        raise a.error(f"adapters of {printable(name, 80)} in PEFT's format are not supported", UnsupportedError)
    if name == EMBEDDINGS:
        return {name: (transposed(a), plain(b))}
    match = BLOCK.match(name)
    prefix, layer = (match[0], int(match[1])) if match else ("", 0)
    kind = name.removeprefix(prefix).removesuffix(".weight")
    parts = [part for part, whole in architecture.fused_sources.items() if whole == kind] or [kind]
    result = {}
    for part in parts:
        move = architecture.reorder.get(part)
        if move is reorder.transpose and not isinstance(a, StackedTensor):
            move = None  # the module computes with the transposed matrix
        if move is not None and move not in ROW_REORDERS:
            raise a.error(f"adapters of {printable(name, 80)} in PEFT's format are not supported", UnsupportedError)
        moved = plain(b) if move is None else with_rows(b, partial(move, hp=hparams(target, layer)))
        result[f"{prefix}{part}.weight"] = plain(a), moved
    return result


def plain(stored: StoredTensor | StackedTensor) -> SourceTensor:
    """Return a matrix as it is."""
    return SourceTensor(stored.name, stored.shape, TYPES[stored.dtype], stored.load)


def transposed(stored: StoredTensor | StackedTensor) -> SourceTensor:
    """Return a transposed matrix."""
    shape = stored.shape
    return SourceTensor(
        stored.name, shape[::-1], TYPES[stored.dtype], lambda: to_bytes(native_values(stored).reshape(shape).T)
    )


def with_rows(stored: StoredTensor | StackedTensor, move: Any) -> SourceTensor:
    """Return a matrix with reordered or selected rows. Raises LocalInferError if it has too few of them."""

    def moved() -> NDArray[Any]:
        result: NDArray[Any] = move(native_values(stored).reshape(stored.shape))
        return result

    try:
        shape = move(np.zeros(stored.shape, np.uint8)).shape
    except ValueError:
        raise stored.error(f"has shape {list(stored.shape)}, which does not fit the heads of the model") from None
    return SourceTensor(stored.name, shape, TYPES[stored.dtype], lambda: to_bytes(moved()))


def hparams(target: Target, layer: int = 0) -> HParams:
    """Return the numbers that the conversion of names and rows uses: of layers and heads."""
    heads, rope = "attention.head_count", RopeMetadata(0, 1.0)
    n_head = target.number(heads, layer) if heads in target.numbers else 0
    n_head_kv = target.number(f"{heads}_kv", layer) if f"{heads}_kv" in target.numbers else n_head
    n_embd, key_length = target.number("embedding_length"), "attention.key_length"
    head_dim = target.number(key_length, layer) if key_length in target.numbers else n_embd // max(n_head, 1)
    counted = HParams(
        target.number("block_count"), 0, n_embd, 0, n_head, n_head_kv, head_dim, 0, 1.0, False, rope, rope, 0, ()
    )
    mtp = target.number("nextn_predict_layers") if "nextn_predict_layers" in target.numbers else 0
    return replace(counted, n_layer=counted.n_layer - mtp, n_mtp_layers=mtp)
