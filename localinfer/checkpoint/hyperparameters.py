"""The numbers of config.json, proven to make sense, and the keys that say the same in a GGUF file."""

from dataclasses import replace
from math import isclose

from localinfer.checkpoint import windows
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.folder import Table
from localinfer.checkpoint.numbers import Numbers
from localinfer.checkpoint.rope import read_ropes
from localinfer.checkpoint.stored import reorder
from localinfer.errors import Unsupported
from localinfer.files.source import Field
from localinfer.plan.keys import LARGEST, MOST
from localinfer.text import printable

LARGEST_VOCABULARY = 1 << 20
MOST_TYPES = 1024
LARGEST_HEAD = 1 << 16

# What changes the computation, with the value that does not; an architecture that has a key for it says so.
FOREIGN = {
    "attention_multiplier": None,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "logit_scale": 1.0,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "use_bidirectional_attention": False,
    "clip_qkv": None,
}
EPS = {"rms": "rms_norm_eps", "layer": "layer_norm_eps"}
EPS_KEYS = {"rms": "attention.layer_norm_rms_epsilon", "layer": "attention.layer_norm_epsilon"}

OLDER_KINDS = {"mamba": "linear_attention", "attention": "full_attention"}  # of layers
LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}

# The largest models of two families divide scores by the embedding's share of a head, without a key that says so.
BLOCKS_OF_LARGEST = {"gemma2": 46, "gemma3": 62}


def read(architecture: Architecture, config: Table) -> Numbers:
    """The model's numbers.

    Raises LocalInferError naming the key that is missing or without sense, Unsupported for what cannot be expressed.
    """
    refuse_foreign(architecture, config)
    packed = read_packing(architecture, config)
    n_embd = config.count("hidden_size", LARGEST["embedding_length"])
    n_head = config.count("num_attention_heads", LARGEST["attention.head_count"])
    n_head_kv = read_heads_kv(config, n_head)
    head_dim = config.count("head_dim", LARGEST_HEAD, max(n_embd // n_head, 1))
    if head_dim % 2:
        raise config.error("head_dim", f"is {head_dim}; it must be even")
    n_layer = config.count("num_hidden_layers", LARGEST["block_count"], len(kinds_of_layers(config)) or None)
    first_position = read_first_position(architecture, config)
    n_ctx = config.count("max_position_embeddings", MOST) - first_position
    if n_ctx < 1:
        raise config.error("max_position_embeddings", f"leaves no position behind the first {first_position}")
    sliding = windows.read(architecture, config, n_layer)
    longer = windows.of_full_layers(config, "global_head_dim", "head_dim", LARGEST_HEAD, head_dim)
    rope, rope_swa = read_ropes(
        config, (longer, head_dim), n_ctx, window_rope=architecture.window_rope, truncates=architecture.truncates
    )
    if rope.n_rot != longer and not architecture.part_turns:
        raise config.error("partial_rotary_factor", "is not supported", Unsupported)
    if architecture.window_rope and any(sliding) and rope_swa.fields:
        raise config.error("rope_parameters", "scaling in layers with a window is not supported", Unsupported)
    n_ff = read_width(architecture, in_all(config, "intermediate_size", n_layer), n_embd)
    n_expert, n_ff_expert, n_ff_shared = read_experts(architecture, config, n_ff)
    numbers = Numbers(
        n_layer=n_layer,
        n_ctx=n_ctx,
        n_embd=n_embd,
        n_ff=n_ff,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        n_vocab=config.count("vocab_size", LARGEST_VOCABULARY),
        eps=config.positive(EPS[architecture.norm], most=1.0),
        tied=config.get("tie_word_embeddings", bool, False),
        rope=rope,
        rope_swa=rope_swa,
        window=config.count("sliding_window", MOST) if any(sliding) else 0,
        sliding=sliding,
        n_expert=n_expert,
        n_ff_expert=n_ff_expert,
        n_ff_shared=n_ff_shared,
        n_dense=read_dense(config, n_layer) if architecture.dense else 0,
        kinds=read_kinds(config, n_layer, set(architecture.kinds)) if architecture.kinds else (),
        packed=packed,
        n_types=config.count("type_vocab_size", MOST_TYPES, 1),
        n_labels=len(labels_of(config)),
        first_position=first_position,
        head_dim_everything=longer,
        n_input=count_or_none(config, "hidden_size_per_layer_input", LARGEST["embedding_length"]),
    )
    refuse_other_scale(architecture, config, numbers)
    numbers = architecture.own_numbers(config, numbers)
    return replace(numbers, own=architecture.own_blocks(config, numbers))


def read_width(architecture: Architecture, config: Table, n_embd: int) -> int:
    """The feed-forward network's; 0 where all blocks have experts, whose width is another number."""
    without = "ffn_up" not in (*architecture.block, *architecture.dense) and "moe_intermediate_size" in config.values
    if without and "intermediate_size" not in config.values:
        return 0
    times = architecture.times
    return config.count("intermediate_size", LARGEST["feed_forward_length"], times and times * n_embd)


def in_all(config: Table, key: str, n_layer: int) -> Table:
    """With one number at a key where there is one for each layer, and they are the same."""
    given = config.values.get(key)
    if not isinstance(given, list) or len(given) != n_layer:
        return config
    if any(each != given[0] for each in given):
        raise config.error(key, "numbers that differ from layer to layer are not supported", Unsupported)
    return replace(config, values={**config.values, key: given[0]})


def read_kinds(config: Table, n_layer: int, known: set[str]) -> tuple[str, ...]:
    """The kind of each block, one of those that are known."""
    kinds = kinds_of_layers(config)
    if len(kinds) != n_layer or not known.issuperset(map(str, kinds)):
        raise config.error("layer_types", f"must be {' or '.join(sorted(known))} {n_layer} times")
    return tuple(kinds)


def kinds_of_layers(config: Table) -> list[str]:
    """In the newest words, nothing if it is not said; in some configurations a text has a letter for each."""
    letters = config.get("hybrid_override_pattern", str, "")
    kinds = config.get("layer_types", list, [LETTERS.get(letter, letter) for letter in letters])
    return [OLDER_KINDS.get(str(kind), str(kind)) for kind in kinds]


def count_or_none(config: Table, key: str, most: int) -> int:
    """A whole number that may be 0, as it is if nothing is said."""
    return config.count(key, most) if config.values.get(key) else 0


def read_first_position(architecture: Architecture, config: Table) -> int:
    """RoBERTa's kind counts positions from behind the id of the token that fills up."""
    if reorder.from_first_position not in architecture.reorder.values():
        return 0
    return config.get("pad_token_id", int, 1) + 1


def labels_of(config: Table) -> list[str]:
    """What a classifier tells apart, by number; two things, where nothing is said."""
    labels = config.table("id2label")
    if not labels.values:
        return ["LABEL_0", "LABEL_1"]
    numbers = sorted((int(key), key) for key in labels.values if key.isdecimal())
    return [labels.get(key, str) for _, key in numbers]


def read_heads_kv(config: Table, n_head: int) -> int:
    """The heads of keys and values; one, where all heads of queries share it."""
    if config.get("multi_query", bool, False) and not config.get("new_decoder_architecture", bool, False):
        return 1
    n_head_kv = config.count("num_key_value_heads", LARGEST["attention.head_count"], n_head)
    if n_head % n_head_kv:
        raise config.error("num_key_value_heads", f"is {n_head_kv}; it must divide {n_head}")
    return n_head_kv


def read_experts(architecture: Architecture, config: Table, n_ff: int) -> tuple[int, int, int]:
    """How many experts there are, how wide each of them is, and those that see every token are together."""
    may_have = "ffn_gate_inp" in architecture.optional and config.values.get("num_experts")
    of_kinds = (name for names in architecture.kinds.values() for name in names)
    if "ffn_gate_inp" not in (*architecture.block, *architecture.mixture, *of_kinds) and not may_have:
        return 0, 0, 0
    widest = LARGEST["feed_forward_length"]
    width = config.count("moe_intermediate_size", widest, n_ff)
    shared = config.get("n_shared_experts", int, 0) * width
    if shared > widest:
        raise config.error("n_shared_experts", f"makes {shared} columns; there may be {widest}")
    if config.values.get("shared_expert_intermediate_size"):
        shared = config.count("shared_expert_intermediate_size", widest)
    return config.count("num_experts", LARGEST["expert_count"]), width, shared or width


def read_dense(config: Table, n_layer: int) -> int:
    """The blocks that have no experts."""
    n_dense = config.get("first_k_dense_replace", int)
    if not 0 <= n_dense <= n_layer:
        raise config.error("first_k_dense_replace", f"is {n_dense}; it must be 0 to {n_layer}")
    return n_dense


def read_packing(architecture: Architecture, config: Table) -> int:
    """What power of their scale ternary matrices have, if they are packed: two classes of layers keep the inverse.

    Raises Unsupported for weights that are quantized in a way that has no counterpart.
    """
    quantization = config.table("quantization_config")
    if not quantization.values or (architecture.mxfp4 and quantization.get("quant_method", str, "") == "mxfp4"):
        return 0
    if is_nvfp4(quantization):
        return 0
    if not architecture.ternary or quantization.get("quant_method", str, "") != "bitnet":
        raise config.error("quantization_config", "weights that are quantized already are not supported", Unsupported)
    if quantization.get("quantization_mode", str, "offline") != "offline":
        return 0
    return 1 if quantization.get("linear_class", str, "bitlinear") == "autobitlinear" else -1


def is_nvfp4(quantization: Table) -> bool:
    """Whether matrices are stored in NVFP4, or some of them: those are found by their scales."""
    algorithm, layout = (str(quantization.values.get(key)) for key in ("quant_algo", "format"))
    return algorithm.endswith("NVFP4") or layout == "nvfp4-pack-quantized"


# --- what cannot be expressed ---


def refuse_foreign(architecture: Architecture, config: Table) -> None:
    """Raise Unsupported for a key that has no counterpart, unless it changes nothing."""
    known = (*architecture.scales, *architecture.multipliers)
    harmless = {key: value for key, value in FOREIGN.items() if key not in known}
    for key, value in (harmless | dict(architecture.fixed)).items():
        given = config.values.get(key, value)
        if given != value:
            raise config.error(key, f"{printable(repr(given), 40)} is not supported", Unsupported)
    activation = config.get("hidden_act", str, architecture.activation[0])
    if activation not in architecture.activation:
        raise config.error("hidden_act", f"{printable(repr(activation), 40)} is not supported", Unsupported)


def refuse_other_scale(architecture: Architecture, config: Table, numbers: Numbers) -> None:
    """Scores that are divided by something else than is usual have no key."""
    scaled_by = config.get("query_pre_attn_scalar", float, float(numbers.head_dim))
    largest = BLOCKS_OF_LARGEST.get(architecture.name) == numbers.n_layer
    if not isclose(scaled_by, numbers.n_embd / numbers.n_head if largest else numbers.head_dim):
        raise config.error("query_pre_attn_scalar", f"{scaled_by:g} is not supported", Unsupported)


# --- GGUF's keys ---


def fields(architecture: Architecture, config: Table, numbers: Numbers) -> dict[str, Field]:
    """The keys `<architecture>.*`."""
    values = {
        "block_count": Field.uint32(numbers.n_layer + numbers.n_ahead),
        "context_length": Field.uint32(numbers.rope.n_ctx or numbers.n_ctx),
        "embedding_length": Field.uint32(numbers.n_embd),
        "attention.head_count": Field.uint32(numbers.n_head if architecture.attends else 0),
        EPS_KEYS[architecture.norm]: Field.float32(numbers.eps),
        "vocab_size": Field.uint32(numbers.n_vocab),
    }
    if numbers.n_ff or not architecture.attends:
        values["feed_forward_length"] = Field.uint32(numbers.n_ff if architecture.attends else 0)
    if architecture.attends:
        values |= {
            "attention.head_count_kv": Field.uint32(numbers.n_head_kv),
            "attention.key_length": Field.uint32(numbers.head_dim),
            "attention.value_length": Field.uint32(numbers.head_dim),
        }
    if numbers.n_ahead:
        values["nextn_predict_layers"] = Field.uint32(numbers.n_ahead)
    if architecture.turns:
        values |= rope_fields(numbers)
    values |= windows.fields(architecture, numbers)
    scales = {key: name for key, name in architecture.scales.items() if key in config.values}
    values |= {name: Field.float32(config.positive(key)) for key, name in scales.items()}
    values |= {name: Field.flag(config.get(key, bool)) for key, name in architecture.flags.items()}
    values |= {name: Field.uint32(config.get(key, int)) for key, name in architecture.counts.items()}
    values |= architecture.own_keys(config, numbers)
    return {f"{architecture.name}.{key}": field for key, field in values.items()}


def rope_fields(numbers: Numbers) -> dict[str, Field]:
    turning = {
        "rope.dimension_count": Field.uint32(numbers.rope.n_rot),
        "rope.freq_base": Field.float32(numbers.rope.theta),
    }
    return turning | {f"rope.scaling.{key}": field for key, field in numbers.rope.fields.items()}
