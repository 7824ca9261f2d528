"""GGUF's names for tensors that an architecture does not know: the names that other architectures give them."""

import re
from collections.abc import Iterator, Mapping
from functools import cache

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures import FAMILIES
from localinfer.conversion.new_architecture.comparison import Comparison, FoundTensor
from localinfer.conversion.new_architecture.survey import pattern
from localinfer.conversion.tensor_mapping import ENDINGS

USUAL_WORDS = (  # in names within a layer, and the kinds that have them
    (r"(?=.*norm)(?=.*post)(?=.*at)[^.]*", "post_attention_norm"),
    (r"(?=.*norm)(?=.*post)(?=.*(ffn|mlp|feed))[^.]*", "post_ffw_norm"),
    (r"(?=.*norm)(?=.*at)[^.]*", "attn_norm"),
    (r"(?=.*norm)(?=.*(ffn|mlp|feed))[^.]*", "ffn_norm"),
    (r"(?=.*bias)(?=.*(expert|router|score|correction)).*", "exp_probs_b.bias"),
    (r"(?=.*shared)(?=.*gate).*", "ffn_gate_shexp"),
    (r"(?=.*shared)(?=.*up).*", "ffn_up_shexp"),
    (r"(?=.*shared)(?=.*down).*", "ffn_down_shexp"),
)


def own_name(tensor: FoundTensor) -> str:
    """Return the name that a conversion's `tensor_names` has for a tensor: without the layer, and in layers without the
    ending."""
    name = pattern(tensor.name)
    before, layer, rest = name.partition(".{}.")
    return without_ending(rest) if layer else before


def suggestions(tensor: FoundTensor, comparison: Comparison) -> tuple[str, ...]:
    """Return kinds that a tensor may be, the most probable first: those that the architecture misses before others."""
    key = without_ending(pattern(tensor.name))
    named = [kind for names in (gguf_kinds(), own_kinds()) for kind in names.get(key, ())]
    rest = key.partition(".{}.")[2].lower()
    named = named or [kind for words, kind in USUAL_WORDS if re.fullmatch(words, rest)][:1]
    alike = [kind for kind in named if kind in comparison.missing]
    return tuple(dict.fromkeys((*alike, *(kind for kind in named if kind not in comparison.known))))


def without_ending(name: str) -> str:
    """Return a name without ".weight" and the like."""
    return next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)


@cache
def gguf_kinds() -> Mapping[str, tuple[str, ...]]:
    """Return the kinds by names in checkpoints, of all architectures that the `gguf` package has."""
    import gguf

    tables = [gguf.TensorNameMap.block_mappings_cfg, *gguf.TensorNameMap.arch_block_mappings_cfg.values()]
    found: dict[str, list[str]] = {}
    for table in tables:
        for number, names in table.items():
            for name in names:
                kind = gguf.TENSOR_NAMES[number].removeprefix("blk.{bid}.")
                found.setdefault(name.replace("{bid}", "{}"), []).append(kind)
    return {name: tuple(dict.fromkeys(kinds)) for name, kinds in found.items()}


@cache
def own_kinds() -> Mapping[str, tuple[str, ...]]:
    """Return the kinds by names in checkpoints, of the tensor names that conversions add."""
    found: dict[str, list[str]] = {}
    for name, kind in added_names():
        found.setdefault(f"model.layers.{{}}.{without_ending(name)}", []).append(kind.removesuffix(".weight"))
    return {name: tuple(dict.fromkeys(kinds)) for name, kinds in found.items()}


def added_names() -> Iterator[tuple[str, str]]:
    for family in FAMILIES:
        for architecture in vars(family).values():
            if isinstance(architecture, Architecture):
                yield from architecture.tensor_names.items()
