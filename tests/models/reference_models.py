"""Reference models: tiny checkpoints of every architecture, and the logits that `transformers` computes with them or,
for families that transformers lacks, a model in torch (tests/oracles).

data/reference_models/NAME.json has a config.json and the shapes of the tensors; the values are generated from the
names. NAME.npz has a text's ids and, at some positions, every third logit, which share all of the computation but the
rows of the output layer. make_reference_models.py writes both.

    folder = reference_models.checkpoint("llama3", tmp_path)   # a directory as Hugging Face libraries save it
    path = checkpoints.as_type(folder, tmp_path / "llama3.gguf", "F32")  # ... converted
    expected = reference_models.expected("llama3")                # .ids, .logits
    np.abs(expected.part(logits) - expected.logits)               # of the logits after all tokens of .ids
    reference_models.divergence(expected.logits, expected.part(logits))  # KL divergence in nats per position

Every value is an 8-bit integer times a power of two, so it is the same in F32, F16 and BF16. Independent of
localinfer's code.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

DATA = Path(__file__).parents[1] / "data" / "reference_models"
ENCODERS = sorted(path.stem for path in DATA.glob("*.json") if '"encoder": true' in path.read_text(encoding="utf-8"))
ENCODER_DECODERS = sorted(
    path.stem for path in DATA.glob("*.json") if '"encoder_decoder": true' in path.read_text(encoding="utf-8")
)
NAMES = sorted({path.stem for path in DATA.glob("*.json")} - {*ENCODERS, *ENCODER_DECODERS})  # of decoders
ALL = [*NAMES, *ENCODERS, *ENCODER_DECODERS]
BIDIRECTIONAL = ENCODERS + [name for name in NAMES if name.startswith(("dream", "llada", "rnd1"))]
N_VOCAB = 264  # bytes, and a few that never occur in texts
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class ReferenceOutput:
    """The expected logits of the tokens `columns` after those at `positions` of `ids`, float32 (len(positions),
    len(columns)); for an encoder the hidden states. The ids of an encoder-decoder model are ~id for the encoder's
    tokens; positions are those of the decoder.
    """

    ids: list[int]
    positions: NDArray[np.intp]
    columns: NDArray[np.intp]
    logits: Floats

    def part(self, outputs: Floats) -> Floats:
        """Return what `logits` has of the outputs of all tokens, (len(ids), n)."""
        return outputs[np.ix_(self.positions, self.columns)]


def read_description(name: str) -> dict[str, Any]:
    """Return the description of a reference model: `config`, `norm` (mean of the norms' weights), `n_layer`, `tensors`
    (shapes by name, with "{}" for the layer's number), `only` (layers by name, for tensors that not all layers have)
    and `integers` (the values of tensors of integers, by name).
    """
    actual: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return actual


def expected(name: str) -> ReferenceOutput:
    """Return the ids and what transformers computed, in float32."""
    with np.load(DATA / f"{name}.npz") as actual:
        rows, columns = (actual[key].astype(np.intp) for key in ("positions", "columns"))
        return ReferenceOutput(actual["ids"].tolist(), rows, columns, actual["logits"])


def architecture(name: str) -> str:
    """Return GGUF's name of the architecture."""
    return str(read_description(name)["architecture"])


def one_of_each_architecture() -> list[str]:
    """Return the name of the model with the most kinds of tensors of each architecture that has an output layer."""
    by_kinds = sorted(NAMES, key=lambda name: len(read_description(name)["tensors"]))
    return sorted({architecture(name): name for name in by_kinds}.values())


def with_all_matrices(names: Sequence[str]) -> list[str]:
    """Return those models of `names` that together have all sets of matrices of each architecture: a model whose kinds
    of matrices another one of its architecture has as well is left out.
    """
    matrices = {
        name: (read["architecture"], {kind for kind, shape in read["tensors"].items() if len(shape) > 1})
        for name, read in ((name, read_description(name)) for name in names)
    }
    kept: list[str] = []
    for name in sorted(names, key=lambda name: -len(matrices[name][1])):
        own, kinds = matrices[name]
        if not any(own == matrices[other][0] and kinds <= matrices[other][1] for other in kept):
            kept.append(name)
    return sorted(kept)


def checkpoint(name: str, folder: Path) -> Path:
    """Write the checkpoint below `folder` and return it: weights in F32, and a tokenizer of single bytes."""
    reference, path = read_description(name), folder / name
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(reference["config"]), encoding="utf-8")
    (path / "tokenizer.json").write_text(json.dumps(byte_tokenizer()), encoding="utf-8")
    save_file(dict(weights(name, reference)), path / "model.safetensors")
    return path


def divergence(expected: Floats, actual: Floats) -> NDArray[np.float64]:
    """Return KL(expected || found) of the next-token distributions, in nats: (n_positions,)."""
    p, q = (_log_softmax(logits.astype(np.float64)) for logits in (expected, actual))
    return np.sum(np.exp(p) * (p - q), axis=1)


def summary(tensors: Mapping[str, tuple[Sequence[int], NDArray[Any]]]) -> dict[str, list[Any]]:
    """Summarize a file's tensors: for those of all blocks their number, shape and a hash; separately for each shape if
    blocks differ.
    """
    actual: dict[str, list[Any]] = {}
    for name in sorted(tensors, key=lambda name: [int(field) if field.isdecimal() else 0 for field in name.split(".")]):
        shape, data = tensors[name]
        kind = re.sub(r"\.\d+\.", ".{}.", name)
        if actual.get(kind, [0, list(shape)])[1] != list(shape):
            kind = f"{kind} {'x'.join(map(str, shape))}"
        each = actual.setdefault(kind, [0, list(shape), hashlib.sha256()])
        each[0] += 1
        each[2].update(np.ascontiguousarray(data).tobytes())
    return {name: [n, shape, sha.hexdigest()[:16]] for name, (n, shape, sha) in sorted(actual.items())}


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


# --- weights ---


def weights(name: str, reference: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Return all tensors by name."""
    layers = range(reference["n_layer"])
    shapes = {
        each.replace("{}", str(i)): tuple(shape)
        for each, shape in reference["tensors"].items()
        for i in (reference.get("only", {}).get(each, layers) if "{}" in each else range(1))
    }
    integers = {each: np.array(numbers, np.int64) for each, numbers in reference.get("integers", {}).items()}
    return {each: values(f"{name}/{each}", shape, reference["norm"]) for each, shape in shapes.items()} | integers


def values(name: str, shape: tuple[int, ...], norm: float) -> NDArray[Any]:
    """Return a tensor's values, uniformly distributed. Matrices roughly preserve the magnitude of their inputs, so that
    all parts of a model matter; logits are smaller. Weights of norms are around `norm`, biases around 0.
    """
    if name.endswith(".tid2eid"):  # different experts for each token, of which there are eight
        first = random_integers(name, (shape[0], 1), 255).astype(np.int64)
        return (first + np.arange(shape[1])) % 8
    if len(shape) > 1:
        gain = 0.5 if shape[0] == N_VOCAB else 1.5
        gain *= shape[-1] / 8 if "modality_router" in name else 1  # its input was divided by shape[-1]
        return random_integers(name, shape, 255) * power_of_two(gain * 3**0.5 / 255 * shape[-1] ** -0.5)
    if name.endswith(".bias"):
        return random_integers(name, shape, 127) * power_of_two(0.5 / 127)
    if name.endswith((".sinks", ".attn_sink")):  # as large as attention scores
        return random_integers(name, shape, 127) * power_of_two(16 / 127)
    if name.endswith(".act_fn.eps"):  # where xIELU changes its form, below 0
        return np.asarray(random_integers(name, shape, 32) / np.float32(256) - np.float32(0.25))
    return np.asarray(np.float32(norm) + random_integers(name, shape, 32) / np.float32(128))


def random_integers(name: str, shape: tuple[int, ...], largest: int) -> Floats:
    """Return integers from -largest to largest that depend only on the name, not on numpy's version."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    bits = np.random.PCG64(seed).random_raw(prod(shape))
    return ((bits >> np.uint64(32)) % np.uint64(2 * largest + 1)).astype(np.float32).reshape(shape) - largest


def power_of_two(value: float) -> np.float32:
    """Return the power of two nearest to a value."""
    return np.float32(2.0 ** round(log2(value)))


# --- a tokenizer ---


def byte_tokenizer() -> dict[str, Any]:
    """Return a tokenizer.json of byte-level BPE without merges: one token per byte, and one BOS/EOS token."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    spell = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": 256, "content": "<|endoftext|>", "special": True, "normalized": False}],
        "normalizer": None,
        "pre_tokenizer": spell,
        "post_processor": None,
        "decoder": spell,
        "model": {"type": "BPE", "vocab": {letters[byte]: byte for byte in range(256)}, "merges": []},
    }
