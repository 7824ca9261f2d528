"""What there is to say of an architecture: its tensors, and the numbers that only it has.

Tensors have GGUF's names, without ".weight" where they have that ending and without the number of the block; what a
checkpoint calls them is known to names.py, how large they are to shapes.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from localinfer.checkpoint.folder import Table
from localinfer.checkpoint.numbers import Numbers, Own
from localinfer.checkpoint.stored.reorder import Reorder
from localinfer.files.source import Field


def same(config: Table, numbers: Numbers) -> Numbers:  # noqa: ARG001
    return numbers


def no_keys(config: Table, numbers: Numbers) -> dict[str, Field]:  # noqa: ARG001 (one signature for all)
    return {}


def all_alike(config: Table, numbers: Numbers) -> tuple[Own, ...]:  # noqa: ARG001
    return ()


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """`name` is GGUF's; `block` the tensors of each block, `model` those outside of blocks that are not usual."""

    name: str
    block: tuple[str, ...]
    not_first: tuple[str, ...] = ()  # ... and of all blocks but the first
    mixture: tuple[str, ...] = ()  # what more a block with experts has
    dense: tuple[str, ...] = ()  # ... and one without, of which there may be some first
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # ... of blocks of each kind, by layer_types
    optional: tuple[str, ...] = ()  # a model has each of these in all blocks or in none
    output_norm: str = "output_norm"
    model: tuple[str, ...] = ()
    optional_model: tuple[str, ...] = ()
    sizes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # where they are other than in shapes.py
    bare: tuple[str, ...] = ("ssm_a", "ssm_d")  # tensors of blocks whose names do not end in ".weight"
    folded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # sizes in GGUF, of what is stored flat
    reorder: Mapping[str, Reorder] = field(default_factory=dict)  # of rows, or rows and columns
    parts: Mapping[str, str] = field(default_factory=dict)  # a tensor that may be part of another of the checkpoint's
    like: str = ""  # the architecture whose names it has, if the `gguf` package does not know it
    names: Mapping[str, str] = field(default_factory=dict)  # those that the package does not know
    mxfp4: Mapping[str, slice] = field(default_factory=dict)  # rows of what may be stored as blocks and scales
    merges_characters: str = ""  # tokenizer.ggml.model, if that is a kind of its own where merges are of characters
    ternary: tuple[str, ...] = ()  # matrices whose values are rounded to -m, 0 and m before they are used

    beside: bool = False  # a head beside another model, which may use the embedding and the output layer of that
    encoder: bool = False  # tokens see those behind them, and there is no output layer
    learned_positions: bool = False  # a row for each
    stand_ins: Mapping[str, str] = field(default_factory=dict)  # what others want but nobody uses: copies of these
    left_out: str = ""  # a pattern of names that are of no use here
    prefix: str = ""  # of all names, in some classes' checkpoints

    times: int | None = None  # the feed-forward network is so many times as wide, unless config.json says how wide
    norm: str = "rms"  # or "layer"
    norm_offset: float = 0.0  # a checkpoint's norms are stored less that much
    activation: tuple[str, ...] = ("silu", "swish")
    attends: bool = True  # whether there is attention at all
    turns: bool = True  # whether positions are rotary embeddings
    part_turns: bool = False  # whether a part of a head may turn
    predicts_further: bool = False  # whether there may be blocks behind the others that predict further tokens
    truncates: bool = True  # whether YaRN's ramp lies between whole pairs
    period: int | None = None  # layers with a window: all but the last of so many (0: all); None: there are none
    first_of_period: bool = False  # it is the first of a period that sees everything
    every_window: bool = False  # whether GGUF must say of each block if it has a window
    window_rope: bool = False  # whether layers with a window have rotary embeddings of their own
    spellings: Mapping[str, str] = field(default_factory=dict)  # a key that goes before the usual one
    scales: Mapping[str, str] = field(default_factory=dict)  # numbers of config.json, and GGUF's keys for them
    multipliers: tuple[str, ...] = ()  # numbers of config.json that go into the weights, as `own_numbers` has them
    flags: Mapping[str, str] = field(default_factory=dict)  # the same of what is true or false
    counts: Mapping[str, str] = field(default_factory=dict)  # the same of whole numbers, which may be 0
    own_numbers: Callable[[Table, Numbers], Numbers] = same  # with what only this one has, or counts in another way
    own_keys: Callable[[Table, Numbers], dict[str, Field]] = no_keys  # what has to be computed
    own_blocks: Callable[[Table, Numbers], tuple[Own, ...]] = all_alike  # how blocks differ
    fixed: Mapping[str, Any] = field(default_factory=dict)  # what config.json may say in one way only
    defaults: Mapping[str, Any] = field(default_factory=dict)  # what it may leave out
