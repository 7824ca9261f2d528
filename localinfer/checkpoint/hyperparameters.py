"""The numbers of config.json, proven to make sense, and the keys that say the same in a GGUF file."""

import warnings
from dataclasses import dataclass
from math import isclose

from localinfer.architectures.gemma3 import BLOCKS_27B
from localinfer.checkpoint.architectures import Architecture
from localinfer.checkpoint.folder import Table
from localinfer.checkpoint.rope import Rope, read_ropes
from localinfer.errors import Unsupported
from localinfer.files.source import Field
from localinfer.plan.keys import LARGEST, MOST
from localinfer.text import printable

PERIOD = 6  # the last of every six blocks sees the whole context, unless config.json says otherwise
LARGEST_VOCABULARY = 1 << 20
LARGEST_HEAD = 1 << 16

# What changes the computation in a way that GGUF has no keys for.
FOREIGN = {
    "quantization_config": "weights that are quantized already are not supported",
    "attn_logit_softcapping": "is not supported",
    "final_logit_softcapping": "is not supported",
    "use_bidirectional_attention": "is not supported",
}


@dataclass(frozen=True, eq=False)
class Numbers:
    """`sliding` says of each block whether it sees a window only; without any, `window` is 0."""

    n_layer: int
    n_ctx: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    eps: float
    tied: bool  # the output layer is the embedding
    rope: Rope
    rope_swa: Rope
    window: int
    sliding: tuple[bool, ...]

    @property
    def n_q(self) -> int:
        """Rows of attn_q."""
        return self.n_head * self.head_dim

    @property
    def n_kv(self) -> int:
        """Rows of attn_k, and of attn_v."""
        return self.n_head_kv * self.head_dim


def read(architecture: Architecture, config: Table) -> Numbers:
    """The model's numbers.

    Raises LocalInferError naming the key that is missing or without sense, Unsupported for what cannot be expressed.
    """
    for key, problem in FOREIGN.items():
        if config.values.get(key):
            raise config.error(key, problem, Unsupported)
    n_embd = config.count("hidden_size", LARGEST["embedding_length"])
    n_head = config.count("num_attention_heads", LARGEST["attention.head_count"])
    n_head_kv = config.count("num_key_value_heads", LARGEST["attention.head_count"], n_head)
    if n_head % n_head_kv:
        raise config.error("num_key_value_heads", f"is {n_head_kv}; it must divide {n_head}")
    head_dim = config.count("head_dim", LARGEST_HEAD, max(n_embd // n_head, 1))
    if head_dim % 2:
        raise config.error("head_dim", f"is {head_dim}; it must be even")
    n_layer = config.count("num_hidden_layers", LARGEST["block_count"])
    n_ctx = config.count("max_position_embeddings", MOST)
    sliding = read_sliding(architecture, config, n_layer)
    rope, rope_swa = read_ropes(config, head_dim, n_ctx)
    if any(sliding) and rope_swa.fields:
        raise config.error("rope_parameters", "scaling in layers with a window is not supported", Unsupported)
    numbers = Numbers(
        n_layer=n_layer,
        n_ctx=n_ctx,
        n_embd=n_embd,
        n_ff=config.count("intermediate_size", LARGEST["feed_forward_length"]),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        n_vocab=config.count("vocab_size", LARGEST_VOCABULARY),
        eps=config.positive("rms_norm_eps", most=1.0),
        tied=config.get("tie_word_embeddings", bool, False),
        rope=rope,
        rope_swa=rope_swa,
        window=config.count("sliding_window", MOST) if any(sliding) else 0,
        sliding=sliding,
    )
    refuse_other_function(architecture, config, numbers)
    return numbers


def read_sliding(architecture: Architecture, config: Table, n_layer: int) -> tuple[bool, ...]:
    """Whether each block sees a window only: by its type, or all but the last of a period."""
    if not architecture.windows:
        warn_of_window(config)
        return (False,) * n_layer
    kinds = config.get("layer_types", list, None)
    if kinds is None:
        period = config.count("sliding_window_pattern", 1 << 10, PERIOD)
        return periodic(period, n_layer)
    if len(kinds) != n_layer or not {"full_attention", "sliding_attention"}.issuperset(map(str, kinds)):
        raise config.error("layer_types", f"must be full_attention or sliding_attention {n_layer} times")
    return tuple(kind == "sliding_attention" for kind in kinds)


def periodic(period: int, n_layer: int) -> tuple[bool, ...]:
    return tuple((block + 1) % period != 0 for block in range(n_layer))


def warn_of_window(config: Table) -> None:
    """GGUF has no windows for llama and qwen; within the window there is no difference."""
    window, used = config.get("sliding_window", int, None), config.get("use_sliding_window", bool, True)
    if window is not None and used and window < config.get("max_position_embeddings", int):
        problem = f"is not carried over; beyond {window} tokens the whole context is seen"
        warnings.warn(str(config.error("sliding_window", problem)), stacklevel=2)


def refuse_other_function(architecture: Architecture, config: Table, numbers: Numbers) -> None:
    """Another activation, or scores divided by something else than is usual, have no key."""
    activation = config.get("hidden_activation", str, config.get("hidden_act", str, architecture.activation))
    if activation != architecture.activation:
        raise config.error("hidden_act", f"{printable(repr(activation), 40)} is not supported", Unsupported)
    scaled_by = config.get("query_pre_attn_scalar", float, float(numbers.head_dim))
    if not isclose(scaled_by, query_scale(architecture, numbers)):
        raise config.error("query_pre_attn_scalar", f"{scaled_by:g} is not supported", Unsupported)


def query_scale(architecture: Architecture, numbers: Numbers) -> float:
    """What scores are divided by the root of; in the largest gemma3, not the length of a head."""
    if architecture.name == "gemma3" and numbers.n_layer == BLOCKS_27B:
        return numbers.n_embd / numbers.n_head
    return numbers.head_dim


def fields(architecture: Architecture, numbers: Numbers) -> dict[str, Field]:
    """The keys `<architecture>.*`."""
    values = {
        "block_count": Field.uint32(numbers.n_layer),
        "context_length": Field.uint32(numbers.n_ctx),
        "embedding_length": Field.uint32(numbers.n_embd),
        "feed_forward_length": Field.uint32(numbers.n_ff),
        "attention.head_count": Field.uint32(numbers.n_head),
        "attention.head_count_kv": Field.uint32(numbers.n_head_kv),
        "attention.key_length": Field.uint32(numbers.head_dim),
        "attention.value_length": Field.uint32(numbers.head_dim),
        "attention.layer_norm_rms_epsilon": Field.float32(numbers.eps),
        "rope.dimension_count": Field.uint32(numbers.head_dim),
        "rope.freq_base": Field.float32(numbers.rope.theta),
        "vocab_size": Field.uint32(numbers.n_vocab),
    }
    values |= {f"rope.scaling.{key}": field for key, field in numbers.rope.fields.items()}
    return {f"{architecture.name}.{key}": field for key, field in (values | window_fields(numbers)).items()}


def window_fields(numbers: Numbers) -> dict[str, Field]:
    """The keys of layers that see a window only; what is usual needs none."""
    if not numbers.window:
        return {}
    found = {
        "attention.sliding_window": Field.uint32(numbers.window),
        "rope.freq_base_swa": Field.float32(numbers.rope_swa.theta),
    }
    if numbers.sliding != periodic(PERIOD, numbers.n_layer):
        found["attention.sliding_window_pattern"] = pattern_field(numbers.sliding)
    return found


def pattern_field(sliding: tuple[bool, ...]) -> Field:
    """A period, where there is one, as every reader understands it; else a flag for each block."""
    periods = (period for period in range(2, len(sliding) + 1) if sliding == periodic(period, len(sliding)))
    period = next(periods, 0)
    return Field.uint32(period) if period else Field.flags(sliding)
