"""The numbers of a model: metadata that an architecture asks for, proven to make sense before anything is computed.

What an architecture asks for is what it understands. A key that nobody has asked for in the end, and that is neither
neutral nor only a description, would be a model that is not the one in the file.
"""

from collections.abc import Callable, Sequence

import numpy as np

from localinfer.errors import LocalInferError, Unsupported
from localinfer.files.gguf import GGUF, StringArray, Value
from localinfer.text import printable

MOST = 1 << 30  # of what has no limit of its own: positions, and what is counted like them
LARGEST_FACTOR = 1e15  # the product of two, or of one and a position, still fits in a float32
LARGEST = {
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

# Keys that tell about a model, or about how it was made, and change nothing that is computed.
DESCRIPTIVE = (
    "context_length",
    "vocab_size",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_attn_factor",  # what attn_factor was computed from
    "tensor_data_layout",
)


class Keys:
    """Reads `<architecture>.<key>`, remembers which were asked for, and says in one line what is wrong with one."""

    def __init__(self, f: GGUF) -> None:
        self.f = f
        self.architecture = f.get("general.architecture", str)
        self._asked = {f"{self.architecture}.{key}" for key in DESCRIPTIVE}

    def name(self, key: str) -> str:
        """The key as the file has it; from now on it is understood."""
        name = f"{self.architecture}.{key}"
        self._asked.add(name)
        return name

    def understand(self, *keys: str) -> None:
        """These are understood by others."""
        self._asked.update(f"{self.architecture}.{key}" for key in keys)

    def has(self, key: str) -> bool:
        return self.name(key) in self.f.metadata

    def count(self, key: str, default: int | None = None, *, least: int = 1, most: int | None = None) -> int:
        """An integer within bounds; where `most` is not told, LARGEST or MOST is it."""
        name = self.name(key)
        value = self.f.get(name, int) if default is None else self.f.get(name, int, default)
        return self._within(key, value, least, most)

    def counts(self, key: str, blocks: int, default: int | None = None, *, least: int = 1) -> list[int]:
        """An integer for each block: the file's array, or one number for all."""
        given = self._of_blocks(key, blocks)
        if not isinstance(given, np.ndarray):
            return [self.count(key, default, least=least)] * blocks
        if len(given) != blocks or given.dtype.kind not in "iu":
            raise self.error(key, f"must have an integer for each of the {blocks} blocks")
        return [self._within(key, int(value), least, None) for value in given]

    def flags(self, key: str, blocks: int, default: Callable[[int], bool]) -> list[bool]:
        """A truth value for each block: the file's array, or what the default says of a block's number."""
        given = self._of_blocks(key, blocks)
        if not isinstance(given, np.ndarray):
            return [default(block) for block in range(blocks)]
        if len(given) != blocks:
            raise self.error(key, f"has {len(given)} entries for {blocks} blocks")
        return [bool(flag) for flag in given]

    def numbers(self, key: str, blocks: int, default: Callable[[int], float]) -> list[float]:
        """A number for each block, which may be infinite: the file's array, or what the default says of a block."""
        given = self._of_blocks(key, blocks)
        if given is None:
            return [default(block) for block in range(blocks)]
        if not isinstance(given, np.ndarray) or len(given) != blocks or np.isnan(given).any():
            raise self.error(key, f"must have a number for each of the {blocks} blocks")
        return [float(value) for value in given]

    def positive(self, key: str, default: float | None = None, *, most: float = LARGEST_FACTOR) -> float:
        """A number above zero."""
        name = self.name(key)
        value = float(self.f.get(name, float) if default is None else self.f.get(name, float, default))
        if not 0 < value < most:
            raise self.error(key, f"is {value}; it must be above 0 and below {most:g}")
        return value

    def number(self, key: str, default: float) -> float:
        """A number that calculations can go on with, of any sign."""
        value = float(self.f.get(self.name(key), float, default, signed=True))
        if abs(value) > LARGEST_FACTOR:
            raise self.error(key, f"is {value}; its magnitude must be at most {LARGEST_FACTOR:g}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        return self.f.get(self.name(key), bool, default)

    def text(self, key: str, default: str) -> str:
        return self.f.get(self.name(key), str, default)

    def error(self, key: str, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        """The error for what is wrong with a key."""
        return self.f.error(self.name(key), problem, kind)

    def refuse(self, key: str, value: object) -> LocalInferError:
        """The error for something well formed that cannot be run."""
        return self.error(key, f"{value} is not supported", Unsupported)

    def refuse_unasked(self) -> None:
        """Raise Unsupported for a key of the architecture that nobody asked for, unless its value changes nothing."""
        for name, value in self.f.metadata.items():
            foreign = name.startswith(f"{self.architecture}.") and name not in self._asked
            if foreign and not is_neutral(value):
                what = f"{described(value)} is not supported by the {printable(self.architecture, 80)} architecture"
                raise self.f.error(name, what, Unsupported)

    def _of_blocks(self, key: str, blocks: int) -> Value | None:
        """What the file says at a key; of an array that goes on behind the blocks, for those that predict further
        tokens, the blocks' part."""
        given, further = self.f.metadata.get(self.name(key)), self.count("nextn_predict_layers", 0, least=0)
        return given[:blocks] if isinstance(given, np.ndarray) and len(given) == blocks + further else given

    def _within(self, key: str, value: int, least: int, most: int | None) -> int:
        highest = LARGEST.get(key, MOST) if most is None else most
        if not least <= value <= highest:
            raise self.error(key, f"is {value}; it must be {least} to {highest}")
        return value


def is_neutral(value: Value) -> bool:
    """Whether a value says that there is no such thing: 0, false, nothing, "none"."""
    if isinstance(value, np.ndarray):
        return not value.any()
    return value in (0, 0.0, False, "", "none") if isinstance(value, int | float | str) else not len(value)


def described(value: Value) -> str:
    """A value in a few words."""
    if isinstance(value, np.ndarray | StringArray):
        return f"an array of {len(value)}"
    return repr(value) if isinstance(value, str) else str(value)


def sliding(keys: Keys, blocks: int, pattern: int, *, first: bool = False) -> Sequence[bool]:
    """Whether each block sees a sliding window only: by the file's array, or all but the last of every `pattern`, or
    but the `first`."""
    key = "attention.sliding_window_pattern"
    given = isinstance(keys.f.metadata.get(keys.name(key)), np.ndarray)
    every = 0 if given else keys.count(key, pattern, least=0)
    return keys.flags(key, blocks, lambda block: every > 0 and (block + (not first)) % every != 0)


def sources_of_keys(keys: Keys, blocks: int, slides: Sequence[bool]) -> Sequence[int]:
    """Which block's keys and values each block looks at: its own; the last ones, as many as the file says, at those of
    the last block before them that sees as far."""
    key = "attention.shared_kv_layers"
    first = blocks - keys.count(key, 0, least=0)
    sources = {slides[block]: block for block in range(first)}
    for block in range(max(0, first), blocks):
        if slides[block] not in sources:
            raise keys.error(key, f"is {blocks - first}; no block before these sees as far as block {block}")
    return [block if block < first else sources[slides[block]] for block in range(blocks)]
