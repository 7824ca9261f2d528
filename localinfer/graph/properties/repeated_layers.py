"""Models that apply their layers several times: each time is a layer of the graph, with keys and values of its own, and
with the tensors of the layer in the file.

Each pass through a layer has its own layer number, and names as if the file repeated the tensors. The attribute `name`
of these tensors is still the name in the file, by which adapters and importance matrices find them.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from localinfer.gguf.reader import GGUF, Tensor
from localinfer.graph.properties.hyperparameters import MAXIMA, Hyperparameters

LAYER = re.compile(r"blk\.(\d+)\.")
NUM_LOOPS = "num_loops"
PER_STACK, HIGH_CYCLES, LOW_CYCLES = (f"hrm.{key}" for key in ("layers_per_stack", "h_cycles", "l_cycles"))


def stored_layers(f: GGUF) -> Sequence[int]:
    """Return the number in the file of each layer that is applied, in their order; () if each is applied once."""
    if f"{f.architecture}.{PER_STACK}" in f.metadata:
        return layers_of_stacks(Hyperparameters(f))
    if f"{f.architecture}.{NUM_LOOPS}" not in f.metadata:
        return ()
    hparams = Hyperparameters(f)
    count, loops = hparams.count("block_count"), hparams.count(NUM_LOOPS)
    if count * loops > MAXIMA["block_count"]:
        raise hparams.error(NUM_LOOPS, f"makes {count * loops} layers; there may be {MAXIMA['block_count']}")
    return [*range(count)] * loops if loops > 1 else ()


def layers_of_stacks(hparams: Hyperparameters) -> Sequence[int]:
    """Return the layers of HRM's two stacks: the first one several times, then the second one, all of it several times.
    The number of blocks in the metadata counts each time."""
    size, high, low = (hparams.count(key) for key in (PER_STACK, HIGH_CYCLES, LOW_CYCLES))
    if hparams.count("block_count") != size * high * (low + 1):
        raise hparams.error("block_count", f"must be {size * high * (low + 1)}, for {high} times {low} + 1 stacks")
    return [*[*range(size)] * low, *range(size, 2 * size)] * high


def has_repeated_layers(f: GGUF) -> bool:
    """Return whether `with_repeated_layers` has repeated tensors."""
    return any(tensor.name != name for name, tensor in f.tensors.items())


def with_repeated_layers(f: GGUF) -> GGUF:
    """Return the model with the tensors of each layer once for each time that it is applied."""
    numbers = () if has_repeated_layers(f) else stored_layers(f)
    if not numbers:
        return f
    tensors, layers = dict[str, Tensor](), dict[int, list[tuple[str, Tensor]]]()
    for name, tensor in f.tensors.items():
        if match := LAYER.match(name):
            layers.setdefault(int(match[1]), []).append((name[match.end() :], tensor))
        else:
            tensors[name] = tensor
    for number, stored in enumerate(numbers):
        tensors |= {f"blk.{number}.{kind}": tensor for kind, tensor in layers.get(stored, ())}
    return replace(f, tensors=tensors, metadata={**f.metadata, f"{f.architecture}.block_count": len(numbers)})
