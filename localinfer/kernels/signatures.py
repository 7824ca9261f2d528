"""The signatures of the kernels: where they are, the names of their arguments, and which arguments they write.

These are plain data without numba, so a graph can be built without compiling kernels. A kernel reads its arguments by
name from a named tuple, whose fields are generated from the signature (`quant.jit.compiler`). The suffix `:out` marks
arguments that the kernel writes, `:float` marks floating-point arguments.
"""

from typing import NamedTuple, Self

from quant.matmul.product_arguments import PRODUCT_PARAMETERS


class KernelSignature(NamedTuple):
    """The kernels `module:function` for small and for large batches, and their common arguments."""

    small_batch: str
    large_batch: str
    parameters: tuple[str, ...]
    floats: frozenset[str]
    writes: tuple[str, ...]

    @classmethod
    def parse(cls, path: str, arguments: str) -> Self:
        """Return the signature of one kernel for all batch sizes; `arguments` are separated by spaces."""
        kinds = dict(each.partition(":")[::2] for each in arguments.split())
        floats = frozenset(name for name, kind in kinds.items() if kind == "float")
        return cls(path, path, tuple(kinds), floats, tuple(name for name, kind in kinds.items() if kind == "out"))

    def with_kernels(self, small_batch: str, large_batch: str) -> "KernelSignature":
        """Return the same arguments for other kernels."""
        return self._replace(small_batch=small_batch, large_batch=large_batch)


# Block formats: `quant.Format` has the kernels of a format. The product is added to `base`, whose rows are
# `base_stride` bytes apart: a residual stream, or with stride 0 a bias; base 0 means none.
GET_ROWS = KernelSignature.parse("", "tokens ids per_token w row_bytes n y:out factor:float")
HASH_NGRAMS = KernelSignature.parse(
    "localinfer.kernels.ngrams:hash_ngrams",
    "tokens ids multipliers sizes offsets longest heads end segments tail:out y:out",
)
PRODUCT = KernelSignature("", "", PRODUCT_PARAMETERS, floats=frozenset(), writes=("y",))
EXPERTS = KernelSignature.parse(
    "", "tokens runs x matrices row_bytes n_in n_out bias y:out y_row y_matrix y_stride token_parts access stop"
)
TO_BF16 = KernelSignature.parse("quant.formats.floats:to_bf16", "tokens x n y:out")
QUANTIZE = KernelSignature.parse("quant.matmul.activations:quantize", "tokens x n out:out")

RMS_NORM = KernelSignature.parse("localinfer.kernels.norm:rms_norm", "tokens x weight n eps:float y:out q:out")
LAYER_NORM = KernelSignature.parse("localinfer.kernels.norm:layer_norm", "tokens x weight bias n eps:float y:out q:out")
NORM_GROUPS = KernelSignature.parse(
    "localinfer.kernels.norm:norm_groups", "tokens x weight step count size eps:float y:out"
)
NORM_HEADS = KernelSignature.parse("localinfer.kernels.norm:norm_heads", "tokens weight heads size eps:float x:out")
CUMULATIVE_NORM = KernelSignature.parse(
    "localinfer.kernels.norm:cumulative_norm", "tokens weight size n eps:float x:out"
)

ADD_BIAS = KernelSignature.parse("localinfer.kernels.residual:add_bias", "tokens bias n x:out")
ADD = KernelSignature.parse("localinfer.kernels.residual:add", "tokens branch factor:float n x:out")
ADD_NORM = KernelSignature.parse("localinfer.kernels.residual:add_norm", "tokens branch weight n eps:float x:out")
GATHER_ROWS = KernelSignature.parse("localinfer.kernels.residual:gather_rows", "tokens x numbers n y:out")
AVERAGE_ROWS = KernelSignature.parse("localinfer.kernels.residual:average_rows", "tokens x numbers count n y:out")
WEIGH_ROWS = KernelSignature.parse(
    "localinfer.kernels.residual:weigh_rows", "tokens x numbers weight bias count n y:out"
)
SOFTMAX = KernelSignature.parse("localinfer.kernels.residual:softmax", "tokens n stride x:out")
SCALE_LOW_RANK = KernelSignature.parse(
    "localinfer.kernels.low_rank:scale_low_rank", "tokens order used scales count owners factors rank x:out"
)
ADD_LOW_RANK = KernelSignature.parse(
    "localinfer.kernels.low_rank:add_low_rank", "tokens x x_n x_first order scales count owners factors rank b n y:out"
)
SOFT_CAP = KernelSignature.parse("localinfer.kernels.residual:soft_cap", "tokens factor:float cap:float n x:out")
CLIP = KernelSignature.parse("localinfer.kernels.residual:clip", "tokens x low:float high:float n y:out")

REPLACE_ROWS = KernelSignature.parse("localinfer.kernels.media:replace_rows", "tokens x x_n x_first numbers n y:out")
ADD_ROWS = KernelSignature.parse("localinfer.kernels.media:add_rows", "tokens x x_n x_first numbers n y:out")

XIELU = KernelSignature.parse(
    "localinfer.kernels.activations:xielu", "tokens alpha_p:float alpha_n:float beta:float eps:float n x:out"
)
GATED_ACTIVATION = KernelSignature.parse(
    "localinfer.kernels.activations:gated_activation", "tokens up up_n up_first n gate:out q:out"
)
GATE_HALVES = KernelSignature.parse("localinfer.kernels.activations:gate_halves", "tokens x n y:out q:out")
GATE_HEADS = KernelSignature.parse("localinfer.kernels.activations:gate_heads", "tokens gate heads size x:out")
SIGMOID_GATE = KernelSignature.parse("localinfer.kernels.activations:sigmoid_gate", "tokens h weight n_in n x:out")

COPY = KernelSignature.parse("localinfer.kernels.altup:copy_slice", "tokens x x_n x_first n y:out y_n y_first")
MATCH_RMS = KernelSignature.parse("localinfer.kernels.altup:match_rms", "tokens x n y:out")
PREDICT = KernelSignature.parse("localinfer.kernels.altup:predict", "tokens x m weight count n predicted:out first:out")
CORRECT = KernelSignature.parse(
    "localinfer.kernels.altup:correct", "tokens y predicted m weight scale count n x:out first:out"
)
ADD_TO_INACTIVE = KernelSignature.parse("localinfer.kernels.altup:add_to_inactive", "tokens branch count n x:out")
GAUSSIAN_TOPK = KernelSignature.parse("localinfer.kernels.altup:gaussian_topk", "tokens deviations:float n x:out")

WEIGH_STREAMS = KernelSignature.parse(
    "localinfer.kernels.hyper_connections:weigh_streams",
    "tokens base scale count n eps:float magnitude:float output_eps:float iterations x:out",
)
COLLAPSE = KernelSignature.parse(
    "localinfer.kernels.hyper_connections:collapse", "tokens x weights n_weights count n y:out"
)
MIX = KernelSignature.parse("localinfer.kernels.hyper_connections:mix", "tokens y weights n_weights count n x:out")
ATTEND_STREAMS = KernelSignature.parse(
    "localinfer.kernels.attention_residuals:attend_streams",
    "tokens x earlier earlier_n count weight n eps:float y:out",
)

CONVOLVE = KernelSignature.parse(
    "localinfer.kernels.recurrent.convolution:convolve", "tokens x weight bias width dilation n segments tail:out y:out"
)

CONVOLVE_GROUPS = KernelSignature.parse(
    "localinfer.kernels.grouped_convolution:convolve_groups", "tokens x base dynamic side taps size n y:out"
)

COMPRESS = KernelSignature.parse(
    "localinfer.kernels.recurrent.compression:compress",
    "tokens values scores ape positions run parts n segments values_tail:out scores_tail:out y:out",
)

RECUR = {
    rule: KernelSignature.parse(
        f"localinfer.kernels.recurrent.state_matrix:recur_{rule}",
        "tokens x stride heads groups step rate a bias skip segments state:out y:out",
    )
    for rule in ("delta", "kda", "add")
}
CHANNEL_DECAY = KernelSignature.parse(
    "localinfer.kernels.recurrent.state_matrix:channel_decay", "tokens step:out a bias bound:float heads"
)
TOKEN_SHIFT = KernelSignature.parse(
    "localinfer.kernels.recurrent.wkv:token_shift", "tokens x n segments tail:out y:out"
)
LERP = KernelSignature.parse(
    "localinfer.kernels.recurrent.wkv:lerp", "tokens x other weight first step shift n y:out"
)
WKV_PREPARE = KernelSignature.parse(
    "localinfer.kernels.recurrent.wkv:prepare", "tokens w:out k:out a:out k_k k_a heads removed:out"
)
RECUR_WKV = KernelSignature.parse(
    "localinfer.kernels.recurrent.wkv:recur_wkv", "tokens r w k v a removed heads segments state:out y:out"
)
WKV_DECAY = KernelSignature.parse("localinfer.kernels.recurrent.wkv:decay", "tokens bias n w:out")
RECUR_DECAYED, RECUR_GATED = (
    KernelSignature.parse(
        f"localinfer.kernels.recurrent.wkv:recur_{rule}", f"tokens r w k v {own} heads segments state:out y:out"
    )
    for rule, own in (("decayed", "first"), ("gated", "groups"))
)
WKV_FINISH = KernelSignature.parse(
    "localinfer.kernels.recurrent.wkv:finish", "tokens r k v r_k weight bias heads eps:float y:out"
)
SELECTIVE_SCAN = KernelSignature.parse(
    "localinfer.kernels.recurrent.selective_scan:selective_scan", "tokens x step b c a skip n segments state:out y:out"
)
SPLIT_HALVES = KernelSignature.parse(
    "localinfer.kernels.recurrent.state_matrix:split_halves", "tokens x size heads first:out second:out"
)

GATHER_HEADS = KernelSignature.parse(
    "localinfer.kernels.head_slices:gather_heads", "tokens x heads size y:out q:out row_count:out runs:out"
)
COPY_SLICES = KernelSignature.parse(
    "localinfer.kernels.head_slices:copy_slices", "tokens x x_first x_step heads size y:out y_first y_step"
)
REPEAT = KernelSignature.parse("localinfer.kernels.head_slices:repeat", "tokens x size heads y:out")
DOT_HEADS = KernelSignature.parse("localinfer.kernels.head_slices:dot_heads", "tokens x other size heads y:out")

RELATIVE_POSITIONS = KernelSignature.parse(
    "localinfer.kernels.attention.relative_positions:add_dimensions",
    "tokens q k heads size height width dim by_row by_column factor:float q_out:out k_out:out",
)
ROPE = KernelSignature.parse(
    "localinfer.kernels.rope:rope", "tokens x heads size dim n_rot table weight eps:float y:out"
)
APPEND = KernelSignature.parse(
    "localinfer.kernels.attention.append:append",
    "tokens k v heads key_size key_dim value_size value_dim n_rot table block_table bias weight eps:float entries "
    "k_cache:out v_cache:out capacity",
)
ATTENTION = KernelSignature.parse(
    "localinfer.kernels.attention.paged_attention:attention",
    "tokens q q_sink k_cache v_cache capacity entry_positions query_positions oldest newest segments sink_pages "
    "compressed_page group kv_heads key_size key_dim value_size value_dim scale:float cap:float attn_sinks slopes "
    "biases chosen choices words chunk partial:out y:out q_out:out stop",
)
SCORE_POSITIONS = KernelSignature.parse(
    "localinfer.kernels.attention.indexer:score_positions",
    "tokens q weights weight_stride heads dim k_cache entry_positions oldest newest sink_pages compressed_page "
    "segments words scores:out",
)
CHOOSE_POSITIONS = KernelSignature.parse(
    "localinfer.kernels.attention.indexer:choose_positions",
    "tokens scores segments words compressed_page top_k chosen:out",
)
CHOOSE_RUNS = KernelSignature.parse(
    "localinfer.kernels.attention.indexer:choose_runs",
    "tokens scores query_positions run_words size top_k words chosen:out",
)
SCORE_PANELS = KernelSignature.parse(
    "localinfer.kernels.attention.block_indexer:score_panels",
    "tokens q heads dim k_cache entry_positions oldest newest sink_pages segments words size scores:out",
)
CHOOSE_BLOCKS = KernelSignature.parse(
    "localinfer.kernels.attention.block_indexer:choose_blocks",
    "tokens scores heads entry_positions query_positions segments words size top_k local places sink_blocks chosen:out",
)
COMBINE = KernelSignature.parse(
    "localinfer.kernels.attention.combine:combine",
    "tokens segments group kv_heads tile_rows separate_tokens value_size value_dim entry_dim attn_sinks chunk "
    "partial:out y:out q_out:out",
)

TRANSPOSE = KernelSignature.parse("localinfer.kernels.relative_attention:transpose", "tokens x n first y:out y_n")
RELATIVE_ATTENTION = KernelSignature.parse(
    "localinfer.kernels.relative_attention:relative_attention",
    "tokens q bias_u bias_v k k_stride v p p_stride p_step first oldest newest heads size scale:float cap:float y:out",
)

ROUTE = KernelSignature.parse(
    "localinfer.kernels.experts:route",
    "tokens logits:out bias table token_ids n_expert groups groups_used used scale:float ids:out weights:out",
)
SCALE_EXPERT_WEIGHTS = KernelSignature.parse(
    "localinfer.kernels.experts:scale_expert_weights", "tokens ids used scales weights:out"
)
SCALE_EXPERT_ROWS = KernelSignature.parse(
    "localinfer.kernels.experts:scale_expert_rows", "tokens order ids scales n y:out"
)
SORT_BY_EXPERT = KernelSignature.parse(
    "localinfer.kernels.experts:sort_by_expert",
    "tokens ids share n_expert used small_rows:out small_order:out small_runs:out large_rows:out large_order:out "
    "large_runs:out pair_rows:out",
)
GATHER = KernelSignature.parse("localinfer.kernels.experts:gather", "tokens x order weights used n y:out q:out")
COMBINE_EXPERTS = KernelSignature.parse(
    "localinfer.kernels.experts:combine_experts", "tokens small large pair_rows weights used n y:out"
)
