"""What a layer's attention computes."""

from dataclasses import dataclass

from localinfer.graph.rope import Rope


@dataclass(frozen=True)
class AttentionSpec:
    """The attention of a layer.

    Queries and keys are rotated by `rope` (None: no positions). Tokens attend to the last `window` positions (0: all),
    or, if `chunked`, to those of their own chunk of `window` positions.

    `head_norm` is the norm of the heads of queries and keys: RMSNorm "before_rope" or "after_rope", "unweighted"
    RMSNorm after RoPE, LayerNorm with weights "per_head", or "none". Scores are multiplied by `scale` (None: key
    size^-1/2) and soft-capped at `cap` unless that is 0. With `sinks`, each head has a learned score, which the softmax
    includes and which has no value.
    """

    rope: Rope | None = None
    window: int = 0
    chunked: bool = False
    head_norm: str = "none"
    scale: float | None = None
    cap: float = 0.0
    sinks: bool = False
