"""The adapters that the options of a model name."""

from collections.abc import Sequence
from pathlib import Path

from localinfer.adapters.control_vector import read_directions
from localinfer.adapters.lora_file import computed_values, open_lora
from localinfer.adapters.target import Target
from localinfer.errors import UsageError
from localinfer.gguf.reader import GGUF
from localinfer.graph.properties.adapters import Adapters, LowRankPair
from localinfer.options import Options, parse_layer_range, parse_scaled_file


def load_adapters(f: GGUF, options: Options) -> Adapters:
    """Return the adapters of the options, checked against the model. For errors see `open_adapters`."""
    loras = scaled_files(options.lora, options.lora_scaled)
    vectors = scaled_files(options.control_vector, options.control_vector_scaled)
    target, pairs = Target.of_file(f), dict[str, list[LowRankPair]]()
    for number, (path, _) in enumerate(loras):
        for name, (a, b, factor) in open_lora(path, target).pairs.items():
            (a_values, a_factor), (b_values, b_factor) = (computed_values(each, path) for each in (a, b))
            pair = LowRankPair(number, a_values, b_values, factor * a_factor * b_factor)
            pairs.setdefault(name, []).append(pair)
    applied = not options.lora_init_without_apply
    scales = tuple(scale if applied else 0.0 for _, scale in loras)
    layers = layer_range(options.control_vector_layer_range, target.number("block_count")) if vectors else None
    return Adapters([path for path, _ in loras], scales, pairs, read_directions(vectors, target, layers))


def scaled_files(plain: Sequence[str], scaled: Sequence[str]) -> list[tuple[Path, float]]:
    """Return the files of two options, and their scales; those without a scale come first."""
    return [*((Path(name), 1.0) for name in plain), *(parse_scaled_file(text) for text in scaled)]


def layer_range(text: str, n_layer: int) -> range | None:
    """Return the layers of --control-vector-layer-range, which includes its end, or None for all. Raises UsageError for
    one without any layer that can have a vector."""
    if not text:
        return None
    start, end = parse_layer_range(text)
    if not max(start, 1) <= min(end, n_layer - 1):
        what = f"has no layer of the model, which has those from 1 to {n_layer - 1}"
        raise UsageError(f"control_vector_layer_range: {text} {what}")
    return range(start, end + 1)
