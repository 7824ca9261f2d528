"""Names of the ops of encoders in the results of a verification."""

import re
from collections import Counter

from localinfer.graph.ops.op import Op
from localinfer.kernels import signatures
from localinfer.naive.encoders.operations import signature_of

KINDS = {
    signatures.RMS_NORM: "norm", signatures.LAYER_NORM: "norm", signatures.NORM_GROUPS: "norm",
    signatures.CUMULATIVE_NORM: "norm", signatures.ADD_NORM: "norm", signatures.PRODUCT: "product",
    signatures.ADD_BIAS: "add", signatures.ADD: "add", signatures.GATHER_ROWS: "gather",
    signatures.AVERAGE_ROWS: "average", signatures.WEIGH_ROWS: "convolution", signatures.SOFTMAX: "softmax",
    signatures.SOFT_CAP: "soft cap", signatures.CLIP: "clip", signatures.GATED_ACTIVATION: "activation",
    signatures.COPY: "copy", signatures.TRANSPOSE: "copy", signatures.RELATIVE_POSITIONS: "positions",
    signatures.ROPE: "rope", signatures.ATTENTION: "attention", signatures.RELATIVE_ATTENTION: "attention",
}  # fmt: skip
LAYER = re.compile(r"\w+(?:\.\w+)*?\.\w*blk\.(?:\d+\.)+")  # the prefix of names in a layer
RESULTS = {"rope": "attn_q_rope", "attention": "attn_heads", "gated": "gate"}  # as points have them


def kind_of_op(op: Op) -> str:
    """Return the kind of an op in a word or two."""
    signature = signature_of(op)
    is_factor = signature == signatures.GATED_ACTIVATION and dict(op.small_batch.constants)["activation"] == "none"
    return "scale" if is_factor else KINDS[signature]


class OpNames:
    """Names ops by their tensor, or by the layer and what they compute. Equal names are numbered from the second on."""

    def __init__(self) -> None:
        self._prefix = ""  # of the ops before
        self._counts = Counter[str]()

    def name(self, op: Op) -> str:
        """Return the name of the next op."""
        name = op.name.removesuffix(".weight")
        has_prefix = "." in name and not name.startswith("blk.")  # `GraphBuilder.gate` does not know the encoder's
        if has_prefix:
            layer = LAYER.match(name)
            self._prefix = layer[0] if layer else f"{name.partition('.')[0]}."
        else:
            name = f"{self._prefix}{name.rpartition('.')[2]}"
        stem, dot, last = name.rpartition(".")
        if last in RESULTS:
            name = f"{stem}{dot}{RESULTS[last]}"
        elif name.endswith("_attnattention"):
            name = f"{name.removesuffix('attention')}_heads"
        self._counts[name] += 1
        return name if self._counts[name] == 1 else f"{name}.{self._counts[name]}"
