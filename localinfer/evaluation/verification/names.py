"""Names of operations in the results of a verification."""

from collections.abc import Sequence
from typing import Any

from localinfer.graph.builder import Block
from localinfer.graph.points import LAYER
from localinfer.graph.recording.operation_log import leaves

KINDS = {  # of the operations whose kind is not the last part of their path
    "add_norm": "norm", "add_vector": "add", "attend": "attention", "cross_attention.attend": "attention",
    "gate": "activation", "matmul": "product", "matmuls": "product", "norm_groups": "norm", "slices": "product",
    "soft_cap": "soft cap",
    "select_blocks": "selection", "select_positions": "selection", "select_runs": "selection",
    "embeddings.add_positions": "embedding", "embeddings.add_token_types": "embedding",
    "embeddings.ngrams": "embedding", "embeddings.per_layer": "embedding", "embeddings.tokens": "embedding",
    "per_head.gate": "activation", "per_head.join": "copy", "per_head.matmul": "product",
    "per_head.repeat": "copy", "per_head.split": "copy", "per_head.split_halves": "copy",
    "output.final_states": "output rows",
    "per_head.dot": "product", "recurrent.average": "convolution",
    "recurrent.convolve": "convolution", "recurrent.lerps": "lerp", "recurrent.recur": "recurrence",
    "recurrent.selective_scan": "selective scan", "recurrent.time_mix": "time mixing", "recurrent.token_shift": "copy",
    "recurrent.gated_linear_attention": "linear attention",
    "experts.apply": "experts", "experts.sigmoid_gate": "activation",
    "altup.add_to_inactive": "streams", "altup.correct": "streams", "altup.merge": "streams",
    "altup.predict": "streams", "cross_layer.altup": "streams", "cross_layer.collapse": "streams",
    "cross_layer.attend": "streams",
    "cross_layer.mix": "streams", "cross_layer.streams": "streams", "cross_layer.weigh_streams": "streams",
}  # fmt: skip
NAMED_BY_TENSOR = {
    "norm", "add_norm", "matmul", "matmuls", "slices", "per_head.matmul", "recurrent.convolve", "recurrent.lerps",
    "cross_layer.attend",
}  # fmt: skip
POINTS = {  # the names of results that no tensor names, as points have them
    "attend": "attn_heads", "cross_attention.attend": "cross_attn_heads",
    "embeddings.tokens": "token_embd", "experts.apply": "ffn_experts",
    "recurrent.recur": "ssm_heads", "recurrent.selective_scan": "ssm_heads", "recurrent.time_mix": "time_mix_heads",
    "recurrent.gated_linear_attention": "time_mix_heads",
}  # fmt: skip


def kind_of(path: str) -> str:
    """Return the kind of an operation in a few words."""
    return KINDS.get(path, path.rpartition(".")[2])


class OperationNames:
    """Names operations by their tensor, or by the layer and what they compute."""

    def __init__(self) -> None:
        self._layer = ""  # the prefix of the operations before

    def name(self, path: str, arguments: Sequence[Any]) -> str:
        """Return the name of the next operation."""
        texts = [*leaves(arguments, str)]
        named = (each for each in texts if "." in each and ":" not in each)  # activations have numbers after a colon
        tensor = texts[0] if path in NAMED_BY_TENSOR else next(named, "")
        if blocks := [str(each) for each in arguments if isinstance(each, Block)]:
            self._layer = blocks[0]
        elif layer := LAYER.match(tensor):
            self._layer = layer[0]
        elif path.startswith(("embeddings.", "output.")):
            self._layer = ""
        return tensor.removesuffix(".weight") or f"{self._layer}{POINTS.get(path, path.rpartition('.')[2])}"

    def name_of_result(self, name: str, path: str, arguments: Sequence[Any], number: int) -> str:
        """Return the name of a result of an operation, which is called `name`: several products have a tensor each."""
        return str(arguments[1 + number][0]) if path == "matmuls" else name
