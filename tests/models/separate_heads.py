"""Draft heads in files of their own: tiny checkpoints for the reference models, and what torch computes with them.

data/heads/NAME.json has the name of the target reference model, a config.json and the shapes of the tensors; the
values are generated from the names. NAME.npz has what make_eagle3_heads.py, make_gemma4_assistants.py and
make_dflash_heads.py computed for the target's text.
Independent of localinfer's code.

    folder = separate_heads.checkpoint("eagle3", tmp_path)
    expected = separate_heads.expected("eagle3")            # .positions, .logits, .chains
    pair = draft_head_models.write_model_and_head("eagle3", tmp_path)   # .model and .head, GGUF files
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import reference_models
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

DATA = Path(__file__).parents[1] / "data" / "heads"
NAMES = sorted(path.stem for path in DATA.glob("*.json"))
EAGLE3 = [name for name in NAMES if name.startswith("eagle3")]
ASSISTANTS = [name for name in NAMES if name.startswith("gemma4")]
DFLASH = [name for name in NAMES if name.startswith(("dflash", "dspark"))]  # which draft several tokens at once
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Expected:
    """`logits` are float32 (len(positions), n), after the tokens up to each of `positions`. A chain is a sequence of
    draft tokens after the token at a position, with the logits that each was drawn from.
    """

    positions: NDArray[np.intp]
    logits: Floats
    chains: NDArray[np.intp]  # positions
    chain_tokens: NDArray[np.intp]  # (chains, steps)
    chain_logits: Floats  # (chains, steps, n)
    tokens: NDArray[np.int64]  # the token of each logit


def read_description(name: str) -> dict[str, Any]:
    actual: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return actual


def expected(name: str) -> Expected:
    with np.load(DATA / f"{name}.npz") as actual:
        return Expected(**actual)


@dataclass(frozen=True, eq=False)
class ExpectedBlocks:
    """What a block after each of `positions` drafts: `logits` (positions, drafts, rows of the output layer), each given
    the most probable token before it, and with a confidence head the probability that each is accepted."""

    positions: NDArray[np.intp]
    logits: Floats
    confidences: Floats  # (positions, drafts), or (positions, 0)


def expected_blocks(name: str) -> ExpectedBlocks:
    with np.load(DATA / f"{name}.npz") as actual:
        return ExpectedBlocks(**actual)


def block_input(name: str, id: int) -> list[int]:
    """Return the tokens of a block after the token `id`: it, and mask tokens."""
    config = read_description(name)["config"]
    own = {key.removeprefix("dspark_"): value for key, value in config.items()} | config.get("dflash_config", {})
    mask = own["noise_token_id"] if "noise_token_id" in own else own["mask_token_id"]
    return [id, *[mask] * (own["block_size"] - 1)]


def draft_tokens(name: str) -> NDArray[np.int64]:
    """Return the token id of each row of the output layer."""
    count = read_description(name)["config"].get("draft_vocab_size", reference_models.N_VOCAB)
    return np.arange(reference_models.N_VOCAB) if count == reference_models.N_VOCAB else np.arange(count) * 3 // 2


def weights(name: str) -> dict[str, Floats]:
    """Return all trained tensors by name."""
    shapes = read_description(name)["tensors"]
    return {each: reference_models.values(f"{name}/{each}", tuple(shape), 1.0) for each, shape in shapes.items()}


def checkpoint(name: str, folder: Path) -> Path:
    """Write the head's checkpoint below `folder` and return its path."""
    path, tokens = folder / name, draft_tokens(name)
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(read_description(name)["config"]), encoding="utf-8")
    tensors: dict[str, NDArray[Any]] = dict(weights(name))
    if len(tokens) < reference_models.N_VOCAB:
        tensors["d2t"] = tokens - np.arange(len(tokens))
        tensors["t2d"] = np.isin(np.arange(reference_models.N_VOCAB), tokens)
    if name in ASSISTANTS:
        (path / "tokenizer.json").write_text(json.dumps(reference_models.byte_tokenizer()), encoding="utf-8")
    save_file(tensors, path / "model.safetensors")
    return path


def checkpoint_with_model(name: str, folder: Path) -> Path:
    """Write the checkpoint of the model for which the head was made, with the head in it, and return its path."""
    description, head = read_description(name), checkpoint(name, folder / "head")
    model = reference_models.checkpoint(description["model"], folder)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    own = {key: value for key, value in description["config"].items() if key.startswith("dspark_")}
    (model / "config.json").write_text(json.dumps(config | own), encoding="utf-8")
    tensors = load_file(model / "model.safetensors") | load_file(head / "model.safetensors")
    save_file(tensors, model / "model.safetensors")
    return model
