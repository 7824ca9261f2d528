"""Blocks behind the others that predict further tokens (`localinfer.plan.ahead`): how many a checkpoint has, and what
it calls them.

DeepSeek's and GLM's go on with the numbers of blocks. Qwen's have names of their own, by which the matrix and the norms
in front of the first one are no part of it. config.json may tell of blocks that a checkpoint lacks, as those do that
were trained further with a library that knows nothing of them: what is there counts.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.numbers import Numbers

T = TypeVar("T")
NAMES = {  # what such a block has in front of it and behind it -> GGUF's names
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "embed_tokens": "nextn.embed_tokens",
    "shared_head.head": "nextn.shared_head_head",
    "shared_head.norm": "nextn.shared_head_norm",
}
NEEDED, OPTIONAL = tuple(NAMES.values())[:3], tuple(NAMES.values())[3:]
QWEN = re.compile(r"(model\.)?mtp\.(layers\.(?P<number>\d{1,9})|(?P<word>\w+))\.(?P<rest>.+)")
OF_QWEN = {
    "fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm",
}  # fmt: skip
JOINS = re.compile(r"(?:.*\.)?layers\.(\d{1,9})\.eh_proj\.weight")


def numbered_on(architecture: Architecture, n_layer: int, stored: Mapping[str, T]) -> dict[str, T]:
    """The same tensors, by names in which these blocks go on behind the last one."""

    def numbered(name: str) -> str:
        found = QWEN.fullmatch(name)
        if found and found["number"]:
            return f"model.layers.{n_layer + int(found['number'])}.{found['rest']}"
        if found and found["word"] in OF_QWEN:
            return f"model.layers.{n_layer}.{OF_QWEN[found['word']]}.{found['rest']}"
        return name

    return {numbered(name) if architecture.predicts_further else name: each for name, each in stored.items()}


def counted(architecture: Architecture, numbers: Numbers, names: Iterable[str]) -> Numbers:
    """With the number of those blocks that are whole: one behind the other, with a matrix that joins both inputs. They
    have attention where others may be of another kind."""
    joined = {int(found[1]) for name in names if (found := JOINS.fullmatch(name))}
    count = 0
    while architecture.predicts_further and numbers.n_layer + count in joined:
        count += 1
    kinds = (*numbers.kinds, *["full_attention"] * count) if numbers.kinds else ()
    return replace(numbers, n_ahead=count, kinds=kinds)
