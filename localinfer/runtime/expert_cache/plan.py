"""How a model that is larger than memory uses memory, and how fast it will be.

Weights that each token needs, the KV cache and scratch memory stay in memory. The rest of `--memory` is for slots of
experts (`localinfer.runtime.expert_cache.slots`).
"""

import mmap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localinfer.errors import NotEnoughMemoryError
from localinfer.gguf.direct_file import measure_read_bandwidth
from localinfer.gguf.reader import GGUF
from localinfer.graph.mixture_of_experts import active_parameters
from localinfer.graph.recording.model_graph import ExpertLayer, ModelGraph
from localinfer.machine import resources
from localinfer.options import Options, parse_memory
from localinfer.runtime.expert_cache.cache import ExpertCache
from localinfer.runtime.expert_cache.slots import matrix_sizes, slot_bytes
from localinfer.runtime.memory_limit import NO_EFFECT, weight_bytes


@dataclass(frozen=True)
class ExpertPlan:
    """The bytes of the weights that stay in memory (`resident`) and of KV cache and scratch memory (`working`); `slots`
    by the sizes of the matrices; the number of experts in the model; the bytes of experts that a token uses."""

    resident: int
    working: int
    slots: Mapping[tuple[int, ...], int]
    experts: int
    used_bytes: int

    @property
    def cached(self) -> int:
        """The number of experts that fit in the cache."""
        return sum(self.slots.values())

    @property
    def cached_share(self) -> float:
        """The part of all experts that fits in the cache."""
        return self.cached / self.experts

    @property
    def cache_bytes(self) -> int:
        """The bytes of all slots."""
        return sum(count * slot_bytes(sizes) for sizes, count in self.slots.items())

    def seconds_per_token(self, bandwidth: float) -> float:
        """Return the time in which the storage reads the experts that a token uses and that are not cached, if all
        experts are used equally often."""
        return self.used_bytes * (1 - self.cached_share) / bandwidth


def plan_experts(f: GGUF, model: ModelGraph, memory: int) -> ExpertPlan:
    """Divide `memory` bytes. Raises NotEnoughMemoryError if a layer's experts do not fit beside everything else."""
    layers = model.expert_layers
    names = {tensor.name for layer in layers for tensor in layer.weights}
    resident = sum(tensor.nbytes for tensor in f.tensors.values() if tensor.name not in names)
    working = model.graph.nbytes
    used = sum(layer.used * sum(matrix_sizes(layer.weights)) for layer in layers)
    least = least_slots(layers)
    least_bytes = sum(count * slot_bytes(sizes) for sizes, count in least.items())
    if resident + working + least_bytes > memory:
        needed = resident + working + least_bytes
        what = (
            f"{size_text(memory)} are too little; at least {size_text(needed)} are needed: {size_text(resident)} for "
            f"weights that each token uses, {size_text(working)} for {model.context.n_ctx} tokens, and "
            f"{size_text(least_bytes)} for all experts of a layer"
        )
        raise f.error("memory", what, NotEnoughMemoryError)
    slots = divide_slots(layers, memory - resident - working)
    return ExpertPlan(resident, working, slots, sum(layer.n_experts for layer in layers), used)


def least_slots(layers: Sequence[ExpertLayer]) -> dict[tuple[int, ...], int]:
    """Return the least number of slots by the sizes of the matrices: all experts of a layer can be used at once."""
    least = Counter[tuple[int, ...]]()
    for layer in layers:
        least |= Counter({matrix_sizes(layer.weights): layer.n_experts})
    return dict(least)


def divide_slots(layers: Sequence[ExpertLayer], nbytes: int) -> dict[tuple[int, ...], int]:
    """Return the number of slots by the sizes of the matrices, which together take at most `nbytes` bytes: the least
    numbers, and of the rest of the experts the same share for all sizes."""
    total = Counter[tuple[int, ...]]()
    for layer in layers:
        total[matrix_sizes(layer.weights)] += layer.n_experts
    least = least_slots(layers)
    free = nbytes - sum(count * slot_bytes(sizes) for sizes, count in least.items())
    rest = sum((total[sizes] - least[sizes]) * slot_bytes(sizes) for sizes in total)
    share = min(1.0, free / rest) if rest else 0.0
    return {sizes: least[sizes] + int(share * (total[sizes] - least[sizes])) for sizes in total}


def open_expert_cache(f: GGUF, model: ModelGraph, options: Options) -> tuple[ExpertCache | None, list[str]]:
    """Return the expert cache of a model with a memory limit (`with_memory_limit`), and what to tell the user. There is
    none if all experts fit.

    The memory of the graph must be allocated. Raises NotEnoughMemoryError if the memory is too small.
    """
    if f.in_memory or not (options.memory and model.expert_layers):
        return None, speed_warnings(f, options)
    plan = plan_experts(f, model, parse_memory(options.memory))
    if plan.cached_share == 1:
        return None, []
    advise_about_reads(f, {tensor.name for layer in model.expert_layers for tensor in layer.weights})
    cache = ExpertCache(f, model.expert_layers, model.graph.matrix_tables, plan.slots)
    return cache, [describe(f, plan, measure_read_bandwidth(f.files))]


def advise_about_reads(f: GGUF, expert_names: set[str]) -> None:
    """Have the system read the weights that stay in memory at once, and nothing around an expert."""
    if not hasattr(mmap, "MADV_WILLNEED"):
        return
    for tensor in f.tensors.values():
        advice = mmap.MADV_RANDOM if tensor.name in expert_names else mmap.MADV_WILLNEED
        f.files[tensor.split_index].advise(advice, tensor.offset, tensor.nbytes)


def describe(f: GGUF, plan: ExpertPlan, bandwidth: float) -> str:
    """Return a line about the use of memory and the expected speed."""
    rate = 1 / plan.seconds_per_token(bandwidth)
    return (
        f"memory: of {size_text(weight_bytes(f))} of weights, {size_text(plan.resident)} stay in memory, beside "
        f"{size_text(plan.working)} of KV cache and scratch memory; {size_text(plan.cache_bytes)} cache "
        f"{plan.cached:,} of {plan.experts:,} experts; the storage reads {bandwidth / 1e9:.1f} GB/s: "
        f"expect about {rate_text(rate)} tokens/s if all experts are used equally often, more if some are preferred"
    )


def speed_warnings(f: GGUF, options: Options) -> list[str]:
    """Return what to tell the user about a model without an expert cache: that --memory has no effect, or that the
    model is slow because it does not fit into memory."""
    if f.in_memory:
        return []
    notes = [NO_EFFECT] if options.memory else []
    nbytes, available = weight_bytes(f), resources.available_memory()
    if nbytes > available:
        rate = measure_read_bandwidth(f.files) / active_parameters(f)[1]
        notes.append(
            f"memory: {size_text(nbytes)} of weights do not fit in {size_text(available)}: each token reads them from "
            f"the storage, about {rate_text(rate)} tokens/s; a smaller quantization or a mixture of experts is faster"
        )
    return notes


def rate_text(rate: float) -> str:
    """Return a number of tokens per second: whole from 10 on, with two digits below."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def size_text(nbytes: float) -> str:
    """Return a size in GiB or MiB, or in bytes below 1 MiB."""
    if nbytes < 1 << 20:
        return f"{nbytes:,.0f} bytes"
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / 2**20:.1f} MiB"
