"""What there is to say of an architecture: its tensors, and the numbers that only it has.

Tensors have GGUF's names, without ".weight" where they have that ending and without the number of the block; what a
checkpoint calls them is known to names.py, how large they are to shapes.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from localinfer.checkpoint.folder import Table
from localinfer.checkpoint.numbers import Numbers
from localinfer.checkpoint.stored.reorder import Reorder
from localinfer.files.source import Field


def same(config: Table, numbers: Numbers) -> Numbers:  # noqa: ARG001
    return numbers


def no_keys(config: Table, numbers: Numbers) -> dict[str, Field]:  # noqa: ARG001 (one signature for all)
    return {}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """`name` is GGUF's; `block` the tensors of each block, `model` those outside of blocks that are not usual."""

    name: str
    block: tuple[str, ...]
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # ... of blocks of each kind, by layer_types
    optional: tuple[str, ...] = ()  # a model has each of these in all blocks or in none
    output_norm: str = "output_norm"
    model: tuple[str, ...] = ()
    sizes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # where they are other than in shapes.py
    folded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # sizes in GGUF, of what is stored flat
    reorder: Mapping[str, Reorder] = field(default_factory=dict)  # of rows, or rows and columns
    parts: Mapping[str, str] = field(default_factory=dict)  # a tensor that is part of another one of the checkpoint's
    like: str = ""  # the architecture whose names it has, if the `gguf` package does not know it
    names: Mapping[str, str] = field(default_factory=dict)  # ... and those that the package does not know
    ternary: tuple[str, ...] = ()  # matrices whose values are rounded to -m, 0 and m before they are used

    times: int | None = None  # the feed-forward network is so many times as wide, unless config.json says how wide
    norm: str = "rms"  # or "layer"
    norm_offset: float = 0.0  # a checkpoint's norms are stored less that much
    activation: tuple[str, ...] = ("silu", "swish")
    attends: bool = True  # whether there is attention at all
    turns: bool = True  # whether positions are rotary embeddings
    part_turns: bool = False  # whether a part of a head may turn
    period: int | None = None  # layers with a window: all but the last of so many (0: all); None: there are none
    every_window: bool = False  # whether GGUF must say of each block if it has a window
    window_rope: bool = False  # whether layers with a window have rotary embeddings of their own
    spellings: Mapping[str, str] = field(default_factory=dict)  # a key that goes before the usual one
    scales: Mapping[str, str] = field(default_factory=dict)  # numbers of config.json, and GGUF's keys for them
    flags: Mapping[str, str] = field(default_factory=dict)  # the same of what is true or false
    own_numbers: Callable[[Table, Numbers], Numbers] = same  # with what only this one has, or counts in another way
    own_keys: Callable[[Table, Numbers], dict[str, Field]] = no_keys  # what has to be computed
    fixed: Mapping[str, Any] = field(default_factory=dict)  # what config.json may say in one way only
    defaults: Mapping[str, Any] = field(default_factory=dict)  # what it may leave out
