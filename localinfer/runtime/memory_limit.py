"""The memory that a model may use, and whether its weights exceed it.

Only for models that exceed it, `localinfer.runtime.expert_cache` is imported, which reads experts when they are needed.
"""

from dataclasses import replace

from localinfer.gguf.reader import GGUF
from localinfer.machine import resources
from localinfer.options import Options, parse_memory

NO_EFFECT = "memory: has no effect, because the model has no experts"
USABLE = 0.9  # the part of the available memory that a model which does not fit uses by default
EXPERT_TENSORS = "_exps."


def weight_bytes(f: GGUF) -> int:
    """Return the bytes of all weights."""
    return sum(tensor.nbytes for tensor in f.tensors.values())


def has_experts(f: GGUF) -> bool:
    """Return whether the model is a mixture of experts."""
    return any(EXPERT_TENSORS in name for name in f.tensors)


def with_memory_limit(f: GGUF, options: Options) -> Options:
    """Return the options with a `memory`: the given one, or most of the available memory if a memory-mapped mixture of
    experts does not fit."""
    if options.memory or options.mlock or f.in_memory or not has_experts(f):
        return options
    usable = int(USABLE * resources.available_memory())
    return options if weight_bytes(f) <= usable else replace(options, memory=str(usable))


def memory_for_weights(f: GGUF, options: Options) -> int:
    """Return the available memory, or `options.memory` if that is less and limits the memory of a mixture."""
    available = resources.available_memory()
    return min(available, parse_memory(options.memory)) if options.memory and has_experts(f) else available


def may_exceed_memory(f: GGUF, options: Options) -> bool:
    """Return whether a model has a memory limit, or is mapped and has more weights than fit into memory."""
    return bool(options.memory) or (not f.in_memory and weight_bytes(f) > resources.available_memory())
