"""Hyperparameters of a model: metadata that an architecture reads, validated before anything is computed.

Every key that an architecture reads is accepted. A key of the architecture that nothing has read, and that is neither
neutral (0, false, empty) nor descriptive, is an error: the graph would not be the model in the file.
"""

from collections.abc import Callable

import numpy as np

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF, StringArray, Value

DEFAULT_MAXIMUM = 1 << 30  # of keys without an entry in MAXIMA, such as numbers of positions
MAX_MAGNITUDE = 1e15  # the product of two of them, or of one and a position, fits in a float32
MAXIMA = {
    "block_count": 1024,
    "embedding_length": 1 << 17,
    "feed_forward_length": 1 << 20,
    "expert_count": 1024,
    "attention.head_count": 1 << 12,
    "attention.head_count_kv": 1 << 12,
    "attention.key_length": 1 << 16,
    "attention.value_length": 1 << 16,
    "attention.key_length_swa": 1 << 16,
    "attention.value_length_swa": 1 << 16,
    "embedding_length_per_layer_input": 1 << 16,
}

# Descriptive keys, which do not change the computation.
DESCRIPTIVE = (
    "context_length",
    "vocab_size",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_attn_factor",  # attn_factor includes it
    "tensor_data_layout",
)


class Hyperparameters:
    """Reads `<architecture>.<key>` metadata, tracks which keys are used, and formats errors about them. Keys may have
    another `prefix`."""

    def __init__(self, f: GGUF, prefix: str = "") -> None:
        self.f = f
        self.architecture = prefix or f.get("general.architecture", str)
        self._used = {f"{self.architecture}.{key}" for key in DESCRIPTIVE}

    def full_name(self, key: str) -> str:
        """Return the full name of a key and accept it."""
        name = f"{self.architecture}.{key}"
        self._used.add(name)
        return name

    def accept(self, *keys: str) -> None:
        """Accept these keys, because other code handles them or they change nothing."""
        self._used.update(f"{self.architecture}.{key}" for key in keys)

    def has(self, key: str) -> bool:
        return self.full_name(key) in self.f.metadata

    def count(self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int | None = None) -> int:
        """Return an integer between `minimum` and `maximum`; the default is MAXIMA or DEFAULT_MAXIMUM."""
        name = self.full_name(key)
        value = self.f.get(name, int) if default is None else self.f.get(name, int, default)
        return self._check_bounds(key, value, minimum, maximum)

    def counts(self, key: str, blocks: int, default: int | None = None, *, minimum: int = 1) -> list[int]:
        """Return an integer for each layer: the file's array, or one number for all layers."""
        value = self._per_block(key, blocks)
        if not isinstance(value, np.ndarray):
            return [self.count(key, default, minimum=minimum)] * blocks
        if len(value) != blocks or value.dtype.kind not in "iu":
            raise self.error(key, f"must have an integer for each of the {blocks} blocks")
        return [self._check_bounds(key, int(number), minimum, None) for number in value]

    def flags(self, key: str, blocks: int, default: Callable[[int], bool]) -> list[bool]:
        """Return a boolean for each layer: the file's array, or `default(layer)`."""
        value = self._per_block(key, blocks)
        if not isinstance(value, np.ndarray):
            return [default(block) for block in range(blocks)]
        if len(value) != blocks:
            raise self.error(key, f"has {len(value)} entries for {blocks} blocks")
        return [bool(flag) for flag in value]

    def numbers(self, key: str, blocks: int, default: Callable[[int], float]) -> list[float]:
        """Return a number for each layer, which may be infinite: the file's array, or `default(layer)`."""
        value = self._per_block(key, blocks)
        if value is None:
            return [default(block) for block in range(blocks)]
        if not isinstance(value, np.ndarray) or len(value) != blocks or np.isnan(value).any():
            raise self.error(key, f"must have a number for each of the {blocks} blocks")
        return [float(number) for number in value]

    def positive(self, key: str, default: float | None = None, *, maximum: float = MAX_MAGNITUDE) -> float:
        """Return a number above zero and below `maximum`."""
        name = self.full_name(key)
        value = float(self.f.get(name, float) if default is None else self.f.get(name, float, default))
        if not 0 < value < maximum:
            raise self.error(key, f"is {value}; it must be above 0 and below {maximum:g}")
        return value

    def number(self, key: str, default: float) -> float:
        """Return a number of any sign whose magnitude is at most MAX_MAGNITUDE."""
        value = float(self.f.get(self.full_name(key), float, default, signed=True))
        if abs(value) > MAX_MAGNITUDE:
            raise self.error(key, f"is {value}; its magnitude must be at most {MAX_MAGNITUDE:g}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        return self.f.get(self.full_name(key), bool, default)

    def text(self, key: str, default: str) -> str:
        return self.f.get(self.full_name(key), str, default)

    def error(self, key: str, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        """Return the error for a problem with a key."""
        return self.f.error(self.full_name(key), problem, kind)

    def unsupported(self, key: str, value: object) -> LocalInferError:
        """Return the error for a valid value that is not supported."""
        return self.error(key, f"{value} is not supported", UnsupportedError)

    def reject_unused(self) -> None:
        """Raise UnsupportedError for an unused key of the architecture, unless its value is neutral."""
        for name, value in self.f.metadata.items():
            foreign = name.startswith(f"{self.architecture}.") and name not in self._used
            if foreign and not is_neutral(value):
                what = f"{describe(value)} is not supported by the {printable(self.architecture, 80)} architecture"
                raise self.f.error(name, what, UnsupportedError)

    def _per_block(self, key: str, blocks: int) -> Value | None:
        """Return the value of a key. If it is an array that also covers the MTP layers, return the entries of the other
        layers."""
        value, n_mtp = self.f.metadata.get(self.full_name(key)), self.count("nextn_predict_layers", 0, minimum=0)
        return value[:blocks] if isinstance(value, np.ndarray) and len(value) == blocks + n_mtp else value

    def _check_bounds(self, key: str, value: int, minimum: int, maximum: int | None) -> int:
        highest = MAXIMA.get(key, DEFAULT_MAXIMUM) if maximum is None else maximum
        if not minimum <= value <= highest:
            raise self.error(key, f"is {value}; it must be {minimum} to {highest}")
        return value


def is_neutral(value: Value) -> bool:
    """Return whether a value means "none": 0, false, empty or "none"."""
    if isinstance(value, np.ndarray):
        return not value.any()
    return value in (0, 0.0, False, "", "none") if isinstance(value, int | float | str) else not len(value)


def describe(value: Value) -> str:
    """Return a value as a short text for messages."""
    if isinstance(value, np.ndarray | StringArray):
        return f"an array of {len(value)}"
    return repr(value) if isinstance(value, str) else str(value)


def multiple_of_32(hparams: Hyperparameters, key: str, blocks: int = 1, block: int = 0) -> int:
    """Return a length that must be a multiple of 32: one for all layers, or the layer's entry of the file's array. The
    last entry also applies to MTP layers."""
    n = hparams.counts(key, blocks, minimum=0)[min(block, blocks - 1)]
    if n % 32 or not n:
        raise hparams.error(key, f"is {n}; it must be a multiple of 32")
    return n
