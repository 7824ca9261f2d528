"""How the plan calls kernels: where they are, the names of their arguments, and which of these they write.

Facts only, without numba: a plan is recorded where no kernel has to be compiled. Arguments stand in the order of the
kernel's own; `:out` is behind those that it writes, `:float` behind those that are numbers with a fraction.
"""

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel `module:function` for few tokens, and one for many with the same arguments."""

    few: str
    many: str
    parameters: tuple[str, ...]
    floats: frozenset[str]
    writes: tuple[str, ...]

    @classmethod
    def of(cls, path: str, arguments: str) -> Self:
        """One kernel for any number of tokens; `arguments` as above, between spaces."""
        kinds = dict(each.partition(":")[::2] for each in arguments.split())
        floats = frozenset(name for name, kind in kinds.items() if kind == "float")
        return cls(path, path, tuple(kinds), floats, tuple(name for name, kind in kinds.items() if kind == "out"))

    def by(self, few: str, many: str) -> "Call":
        """The same arguments for other kernels."""
        return replace(self, few=few, many=many)


# Of block formats: `quant.Format` says which kernels of a format take these arguments. A product is added to `base`, of
# which a token's row is `base_stride` bytes behind the last one's: a residual stream, or with 0 a bias; no base is 0.
GET_ROWS = Call.of("", "tokens ids w row_bytes n y:out factor:float")
PRODUCT = Call.of("", "tokens x w row_bytes n_in n_out base base_stride y:out y_stride stop")
EXPERTS = Call.of("", "tokens runs x w row_bytes n_in n_out bias y:out y_row y_matrix y_stride stop")
TO_BF16 = Call.of("quant.formats.floats:to_bf16", "tokens x n y:out")
QUANTIZE = Call.of("quant.products.activations:quantize", "tokens x n out:out")

RMS_NORM = Call.of("localinfer.ops.norm:rms_norm", "tokens x weight n eps:float y:out q:out")
LAYER_NORM = Call.of("localinfer.ops.norm:layer_norm", "tokens x weight bias n eps:float y:out q:out")
NORM_PARTS = Call.of("localinfer.ops.norm:norm_parts", "tokens x weight step count size eps:float y:out")
NORM_HEADS = Call.of("localinfer.ops.norm:norm_heads", "tokens weight heads size eps:float x:out")

ADD_BIAS = Call.of("localinfer.ops.residual:add_bias", "tokens bias n x:out")
ADD = Call.of("localinfer.ops.residual:add", "tokens branch factor:float n x:out")
ADD_NORM = Call.of("localinfer.ops.residual:add_norm", "tokens branch weight n eps:float x:out")
PICK = Call.of("localinfer.ops.residual:pick", "tokens x numbers n y:out")
SOFT_CAP = Call.of("localinfer.ops.residual:soft_cap", "tokens factor:float cap:float n x:out")

GATED = Call.of("localinfer.ops.gate:gated", "tokens up up_n up_first n gate:out q:out")
GATE_HALVES = Call.of("localinfer.ops.gate:gate_halves", "tokens x n y:out q:out")
GATE_TOKENS = Call.of("localinfer.ops.gate:gate_tokens", "tokens h weight n_in n x:out")

COPY = Call.of("localinfer.ops.streams:copy", "tokens x x_n x_first n y:out y_n y_first")
AS_LONG = Call.of("localinfer.ops.streams:as_long", "tokens x n y:out")
PREDICT = Call.of("localinfer.ops.streams:predict", "tokens x m weight count n predicted:out first:out")
CORRECT = Call.of("localinfer.ops.streams:correct", "tokens y predicted m weight scale count n x:out first:out")
ADD_TO_OTHERS = Call.of("localinfer.ops.streams:add_to_others", "tokens branch count n x:out")
KEEP_LARGEST = Call.of("localinfer.ops.streams:keep_largest", "tokens deviations:float n x:out")

CONVOLVE = Call.of("localinfer.ops.convolve:convolve", "tokens x weight bias width n segments tail:out y:out")

RECUR = {
    rule: Call.of(
        f"localinfer.ops.recur:recur_{rule}",
        "tokens x stride heads groups step rate a bias skip segments state:out y:out",
    )
    for rule in ("delta", "add")
}
SHIFT = Call.of("localinfer.ops.wkv:shift", "tokens x n segments tail:out y:out")
LERP = Call.of("localinfer.ops.wkv:lerp", "tokens x other weight step n y:out")
WKV_PREPARE = Call.of("localinfer.ops.wkv:prepare", "tokens w:out k:out a:out k_k k_a heads removed:out")
RECUR_WKV = Call.of("localinfer.ops.wkv:recur_wkv", "tokens r w k v a removed heads segments state:out y:out")
WKV_FINISH = Call.of("localinfer.ops.wkv:finish", "tokens r k v r_k weight bias heads eps:float y:out")
SCAN = Call.of("localinfer.ops.scan:scan", "tokens x step b c a skip n segments state:out y:out")
HALVES = Call.of("localinfer.ops.recur:halves", "tokens x size heads first:out second:out")

GATHER_HEADS = Call.of("localinfer.ops.heads:gather_heads", "tokens x heads size y:out q:out lined_up:out runs:out")
PUT_PART = Call.of("localinfer.ops.heads:put_part", "tokens x x_first x_step heads size y:out y_first y_step")

ROPE = Call.of("localinfer.ops.rope:rope", "tokens x heads size dim n_rot table weight eps:float y:out")
APPEND = Call.of(
    "localinfer.ops.append:append",
    "tokens k v heads n_rot table block_table bias weight eps:float cells k_cache:out v_cache:out capacity",
)
ATTENTION = Call.of(
    "localinfer.ops.attention:attention",
    "tokens q q_sink k_cache v_cache capacity cell_positions oldest newest segments sink_blocks kv_heads scale:float "
    "cap:float attn_sinks chunk partial:out y:out q_out:out stop",
)
COMBINE = Call.of(
    "localinfer.ops.attention:combine", "tokens segments kv_heads attn_sinks chunk partial:out y:out q_out:out"
)

ROUTE = Call.of(
    "localinfer.ops.experts:route",
    "tokens logits:out bias n_expert groups groups_used used scale:float ids:out weights:out"
)
SCALE_CHOSEN = Call.of("localinfer.ops.experts:scale_chosen", "tokens ids used scales weights:out")
SCALE_ROWS = Call.of("localinfer.ops.experts:scale_rows", "tokens order ids scales n y:out")
LINE_UP = Call.of(
    "localinfer.ops.experts:line_up",
    "tokens ids n_expert used few:out few_order:out few_runs:out many:out many_order:out many_runs:out places:out",
)
GATHER = Call.of("localinfer.ops.experts:gather", "tokens x order weights used n y:out q:out")
BLEND = Call.of("localinfer.ops.experts:blend", "tokens few many places weights used n y:out")
