"""The architectures, as a table: one more is a row in BY_CLASS, and an Architecture that says what is its own."""

from difflib import get_close_matches

from localinfer.checkpoint import own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.folder import Table
from localinfer.checkpoint.spelling import spelled
from localinfer.checkpoint.stored import reorder
from localinfer.errors import Unsupported
from localinfer.text import printable

BEFORE = ("attn_norm", "ffn_norm")  # norms before the branches
BEHIND = ("post_attention_norm", "post_ffw_norm")  # ... before they join the residual stream
HEAD_NORMS = ("attn_q_norm", "attn_k_norm")
APART = ("attn_q", "attn_k", "attn_v", "attn_output")
FUSED = ("attn_qkv", "attn_output")
PLAIN = ("ffn_up", "ffn_down")
GATED = ("ffn_gate", *PLAIN)  # glm4 and phi3 have the gate in ffn_up
EXPERTS = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
GELU, EXACT_GELU, RELU2 = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), ("gelu",), ("relu2",)
NEIGHBOURS = {
    "attn_q": reorder.neighbouring_queries,
    "attn_q.bias": reorder.neighbouring_queries,
    "attn_k": reorder.neighbouring_keys,
    "attn_k.bias": reorder.neighbouring_keys,
}


def biases(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}.bias" for name in names)


LLAMA = Architecture(
    name="llama",
    block=(*BEFORE, *APART, *GATED),
    optional=biases(*APART, *GATED),
    reorder=NEIGHBOURS,
)
MISTRAL3 = Architecture(name="mistral3", block=LLAMA.block, reorder=NEIGHBOURS, own_keys=own_keys.growing_temperature)
SMOLLM3 = Architecture(
    name="smollm3",
    block=LLAMA.block,
    optional=LLAMA.optional,
    reorder=NEIGHBOURS,
    own_keys=own_keys.each_fourth_without_rope,
    defaults={"tie_word_embeddings": True},
)
GRANITE = Architecture(
    name="granite",
    block=LLAMA.block,
    optional=LLAMA.optional,
    reorder=NEIGHBOURS,
    scales={
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    },
    defaults={
        "attention_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
)
MINICPM = Architecture(
    name="minicpm",
    block=LLAMA.block,
    reorder=NEIGHBOURS,
    own_keys=own_keys.scales_of_minicpm,
    defaults={"tie_word_embeddings": True},
)
INTERNLM2 = Architecture(
    name="internlm2",
    block=LLAMA.block,
    optional=biases(*APART),
    parts=dict.fromkeys(("attn_q", "attn_k", "attn_v"), "attn_qkv")
    | dict.fromkeys(biases("attn_q", "attn_k", "attn_v"), "attn_qkv.bias"),
    reorder={
        "attn_q": reorder.queries_of_groups,
        "attn_k": reorder.keys_of_groups,
        "attn_v": reorder.values_of_groups,
        "attn_q.bias": reorder.queries_of_groups,
        "attn_k.bias": reorder.keys_of_groups,
        "attn_v.bias": reorder.values_of_groups,
    },
    names={"attention.wqkv": "attn_qkv"},
)
QWEN2 = Architecture(name="qwen2", block=(*LLAMA.block, *biases("attn_q", "attn_k", "attn_v")))
QWEN3 = Architecture(name="qwen3", block=(*LLAMA.block, *HEAD_NORMS))
MIXTRAL = Architecture(
    name="llama",
    block=(*BEFORE, *APART, *EXPERTS),
    reorder=NEIGHBOURS,
    names={f"block_sparse_moe.experts.{old}": new for old, new in zip(("w1", "w3", "w2"), EXPERTS[1:], strict=True)},
    own_keys=own_keys.experts,
)
QWEN3MOE = Architecture(
    name="qwen3moe",
    block=(*BEFORE, *APART, *HEAD_NORMS, *EXPERTS),
    own_keys=own_keys.experts,
    fixed={"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
)
OLMOE = Architecture(
    name="olmoe",
    block=(*BEFORE, *APART, *HEAD_NORMS, *EXPERTS),
    sizes={"attn_q_norm": ("n_q",), "attn_k_norm": ("n_kv",)},
    own_keys=own_keys.experts,
    fixed={"norm_topk_prob": False},
)
EXAONE4 = Architecture(name="exaone4", block=(*BEHIND, *APART, *GATED, *HEAD_NORMS), period=4, every_window=True)
OLMO2 = Architecture(
    name="olmo2",
    block=(*BEHIND, *APART, *GATED, *HEAD_NORMS),
    sizes={"attn_q_norm": ("n_q",), "attn_k_norm": ("n_kv",)},
    period=4,
    every_window=True,
    window_rope=True,
)
ERNIE4_5 = Architecture(name="ernie4_5", block=LLAMA.block, optional=biases(*APART, *GATED))
HUNYUAN_DENSE = Architecture(name="hunyuan-dense", block=(*LLAMA.block, *HEAD_NORMS), fixed={"use_cla": False})
SEED_OSS = Architecture(
    name="seed_oss",
    block=("attn_norm", "post_attention_norm", *APART, *GATED),
    optional=biases("attn_q", "attn_k", "attn_v"),
    fixed={"attention_out_bias": False, "mlp_bias": False},
)
GLM4 = Architecture(
    name="glm4",
    block=(*BEFORE, *BEHIND, *APART, *PLAIN),
    optional=biases("attn_q", "attn_k", "attn_v"),
    sizes={"ffn_up": ("n_gate_and_up", "n_embd")},
    part_turns=True,
    defaults={"partial_rotary_factor": 0.5},
)
BITNET = Architecture(
    name="bitnet",
    block=(*LLAMA.block, "attn_sub_norm", "ffn_sub_norm"),
    ternary=(*APART, *GATED),
    own_keys=own_keys.unscaled,
)
BITNET_B158 = Architecture(
    name="bitnet-b1.58",
    like="bitnet",
    block=BITNET.block,
    names={"self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"},
    ternary=BITNET.ternary,
    activation=RELU2,
    own_keys=own_keys.unscaled,
)
NEMOTRON = Architecture(
    name="nemotron",
    block=(*BEFORE, *biases(*BEFORE), *APART, *PLAIN),
    optional=biases(*APART, *PLAIN),
    model=("output_norm.bias",),
    norm="layer",
    norm_offset=1.0,
    activation=RELU2,
    part_turns=True,
    own_keys=own_keys.not_scaled,
    defaults={"partial_rotary_factor": 0.5},
)

GEMMA = Architecture(
    name="gemma",
    block=LLAMA.block,
    norm_offset=1.0,
    activation=GELU + EXACT_GELU,  # which the first configurations said by mistake
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"},
)
GEMMA2 = Architecture(
    name="gemma2",
    block=(*BEFORE, *BEHIND, *APART, *GATED),
    norm_offset=1.0,
    activation=GELU,
    period=2,
    scales={
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    defaults=GEMMA.defaults,
)
GEMMA3 = Architecture(
    name="gemma3",
    block=(*BEFORE, *BEHIND, *APART, *GATED, *HEAD_NORMS),
    norm_offset=1.0,
    activation=GELU,
    period=6,
    window_rope=True,
    scales={"final_logit_softcapping": "final_logit_softcapping"},
    defaults={  # the larger models' configurations say only what is different
        **GEMMA.defaults,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "query_pre_attn_scalar": 256,
    },
)

PHI2 = Architecture(
    name="phi2",
    block=("attn_norm", "attn_norm.bias", *APART, *biases(*APART), *PLAIN, *biases(*PLAIN)),
    model=("output_norm.bias", "output.bias"),
    norm="layer",
    activation=GELU,
    part_turns=True,
    fixed={"qk_layernorm": False},
    defaults={"partial_rotary_factor": 0.5},
)
PHI3 = Architecture(
    name="phi3",
    block=(*BEFORE, *FUSED, *PLAIN),
    sizes={"ffn_up": ("n_gate_and_up", "n_embd")},
    part_turns=True,
    period=0,
    own_keys=own_keys.original_context,
)
STABLELM = Architecture(
    name="stablelm",
    block=("attn_norm", "attn_norm.bias", *APART, *GATED),
    optional=("ffn_norm", "ffn_norm.bias", *biases("attn_q", "attn_k", "attn_v"), *HEAD_NORMS),
    model=("output_norm.bias",),
    sizes={"attn_q_norm": ("n_head", "head_dim"), "attn_k_norm": ("n_head_kv", "head_dim")},
    norm="layer",
    part_turns=True,
    flags={"use_parallel_residual": "use_parallel_residual"},
    defaults={"partial_rotary_factor": 0.25, "use_parallel_residual": False},
)
STARCODER2 = Architecture(
    name="starcoder2",
    block=(*BEFORE, *biases(*BEFORE), *APART, *PLAIN),
    optional=biases(*APART, *PLAIN),
    model=("output_norm.bias",),
    norm="layer",
    activation=GELU,
    defaults={"tie_word_embeddings": True},
)
LFM2 = Architecture(
    name="lfm2",
    block=(*BEFORE, *GATED),
    kinds={
        "conv": ("shortconv.in_proj", "shortconv.conv", "shortconv.out_proj"),
        "full_attention": (*APART, *HEAD_NORMS),
    },
    output_norm="token_embd_norm",
    own_numbers=own_keys.numbers_of_lfm2,
    own_keys=own_keys.short_convolutions,
    fixed={"conv_bias": False},
    defaults={"tie_word_embeddings": True, "rope_theta": 1_000_000.0},
)
QWEN35 = Architecture(
    name="qwen35",
    block=("attn_norm", "post_attention_norm", *GATED),
    kinds={
        "linear_attention": (
            "attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_conv1d", "ssm_dt.bias", "ssm_a", "ssm_norm",
            "ssm_out",
        ),
        "full_attention": (*APART, *HEAD_NORMS),
    },
    sizes={"attn_qkv": ("n_convolved", "n_embd"), "attn_q": ("n_2q", "n_embd")},
    reorder={
        "attn_qkv": reorder.behind_keys_in_turns,
        "ssm_conv1d": reorder.behind_keys_in_turns,
        "attn_gate": reorder.values_in_turns,
        **dict.fromkeys(("ssm_alpha", "ssm_beta", "ssm_dt.bias", "ssm_a"), reorder.numbers_in_turns),
        "ssm_out": reorder.columns_in_turns,
    },
    norm_offset=1.0,
    part_turns=True,
    own_numbers=own_keys.numbers_of_delta_net,
    own_keys=own_keys.delta_net,
    fixed={"attention_bias": False, "attn_output_gate": True},
)
MAMBA2 = Architecture(
    name="mamba2",
    block=(
        "attn_norm", "ssm_in", "ssm_conv1d", "ssm_conv1d.bias", "ssm_dt.bias", "ssm_a", "ssm_d", "ssm_norm", "ssm_out"
    ),
    sizes={"ssm_norm": ("n_values",)},
    folded={"ssm_a": ("n_heads", "one"), "ssm_d": ("n_heads", "one"), "ssm_norm": ("n_groups", "n_of_group")},
    attends=False,
    turns=False,
    spellings={"rms_norm_eps": "layer_norm_epsilon"},
    own_numbers=own_keys.numbers_of_mamba2,
    own_keys=own_keys.states,
    fixed={"use_bias": False, "use_conv_bias": True},
    defaults={  # the first two change nothing that is written
        "num_attention_heads": 1,
        "intermediate_size": 1,
        "max_position_embeddings": 1 << 20,
        "tie_word_embeddings": False,
    },
)
GPT2 = Architecture(
    name="gpt2",
    block=(*BEFORE, *biases(*BEFORE), *FUSED, *biases(*FUSED), *PLAIN, *biases(*PLAIN)),
    model=("output_norm.bias", "position_embd"),
    reorder=dict.fromkeys((*FUSED, *PLAIN), reorder.transposed),
    times=4,
    norm="layer",
    activation=GELU,
    turns=False,
    fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu_new"},
)
GPTNEOX = Architecture(
    name="gptneox",
    block=(*BEFORE, *biases(*BEFORE), *FUSED, *biases(*FUSED), *PLAIN, *biases(*PLAIN)),
    model=("output_norm.bias",),
    reorder={"attn_qkv": reorder.by_kind, "attn_qkv.bias": reorder.by_kind},
    norm="layer",
    activation=GELU + EXACT_GELU,
    part_turns=True,
    flags={"use_parallel_residual": "use_parallel_residual"},
    defaults={"partial_rotary_factor": 0.25, "use_parallel_residual": True},
)
FALCON = Architecture(
    name="falcon",
    block=("attn_norm", "attn_norm.bias", *FUSED, *PLAIN),
    optional=("attn_norm_2", "attn_norm_2.bias"),
    model=("output_norm.bias",),
    reorder={"attn_qkv": reorder.by_kind_of_groups},
    times=4,
    norm="layer",
    activation=EXACT_GELU,
    own_keys=own_keys.layout_of_falcon,
    fixed={"alibi": False, "parallel_attn": True, "bias": False},
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu", "max_position_embeddings": 2048},
)
COMMAND_R = Architecture(
    name="command-r",
    block=("attn_norm", *APART, *GATED),
    optional=HEAD_NORMS,
    sizes={"attn_q_norm": ("n_head", "head_dim"), "attn_k_norm": ("n_head_kv", "head_dim")},
    norm="layer",
    spellings={"max_position_embeddings": "model_max_length"},
    scales={"logit_scale": "logit_scale"},
    own_keys=own_keys.not_scaled,
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-5, "logit_scale": 0.0625},
)
COHERE2 = Architecture(
    name="cohere2",
    block=COMMAND_R.block,
    norm="layer",
    period=4,
    scales={"logit_scale": "logit_scale"},
    own_keys=own_keys.not_scaled,
    defaults=COMMAND_R.defaults,
)

BY_CLASS = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "InternLM3ForCausalLM": LLAMA,
    "Mistral3ForConditionalGeneration": MISTRAL3,  # its text model; what sees pictures is left out
    "Ministral3ForCausalLM": MISTRAL3,
    "SmolLM3ForCausalLM": SMOLLM3,
    "GraniteForCausalLM": GRANITE,
    "MiniCPMForCausalLM": MINICPM,
    "InternLM2ForCausalLM": INTERNLM2,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "MixtralForCausalLM": MIXTRAL,
    "Qwen3MoeForCausalLM": QWEN3MOE,
    "OlmoeForCausalLM": OLMOE,
    "Exaone4ForCausalLM": EXAONE4,
    "Olmo2ForCausalLM": OLMO2,
    "Olmo3ForCausalLM": OLMO2,
    "Ernie4_5ForCausalLM": ERNIE4_5,
    "Ernie4_5_ForCausalLM": ERNIE4_5,
    "HunYuanDenseV1ForCausalLM": HUNYUAN_DENSE,
    "SeedOssForCausalLM": SEED_OSS,
    "Glm4ForCausalLM": GLM4,
    "BitnetForCausalLM": BITNET,
    "BitNetForCausalLM": BITNET_B158,
    "NemotronForCausalLM": NEMOTRON,
    "GemmaForCausalLM": GEMMA,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": GEMMA3,  # as above
    "PhiForCausalLM": PHI2,
    "Phi3ForCausalLM": PHI3,
    "StableLmForCausalLM": STABLELM,
    "StableLMEpochForCausalLM": STABLELM,
    "Starcoder2ForCausalLM": STARCODER2,
    "Lfm2ForCausalLM": LFM2,
    "Qwen3_5ForCausalLM": QWEN35,
    "Qwen3_5ForConditionalGeneration": QWEN35,  # as above
    "Mamba2ForCausalLM": MAMBA2,
    "GPT2LMHeadModel": GPT2,
    "GPTNeoXForCausalLM": GPTNEOX,
    "FalconForCausalLM": FALCON,
    "RWForCausalLM": FALCON,
    "CohereForCausalLM": COMMAND_R,
    "Cohere2ForCausalLM": COHERE2,
}


def find(config: Table) -> tuple[Architecture, Table]:
    """The architecture that config.json names, and the table of its numbers, with defaults.

    Raises Unsupported naming the architecture, and one that is known and has a similar name.
    """
    classes = config.get("architectures", list)
    name = classes[0] if classes else None
    if not isinstance(name, str) or name not in BY_CLASS:
        nearest = get_close_matches(str(name), BY_CLASS, n=1, cutoff=0.0)[0]
        what = f"{printable(repr(name), 80)} is not supported; the nearest that is: {nearest}"
        raise config.error("architectures", what, Unsupported)
    architecture = BY_CLASS[name]
    return architecture, spelled(config, architecture.spellings, architecture.defaults)
