"""Llama, and dense models that differ from it in little: norms, biases, layers without rotary embeddings."""

from localinfer.checkpoint import own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import APART, BEFORE, BEHIND, GATED, HEAD_NORMS, NEIGHBOURS, biases
from localinfer.checkpoint.stored import reorder

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
BY_CLASS = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "InternLM3ForCausalLM": LLAMA,
    "Mistral3ForConditionalGeneration": MISTRAL3,
    "Ministral3ForCausalLM": MISTRAL3,
    "SmolLM3ForCausalLM": SMOLLM3,
    "MiniCPMForCausalLM": MINICPM,
    "InternLM2ForCausalLM": INTERNLM2,
    "Exaone4ForCausalLM": EXAONE4,
    "Olmo2ForCausalLM": OLMO2,
    "Olmo3ForCausalLM": OLMO2,
    "Ernie4_5ForCausalLM": ERNIE4_5,
    "Ernie4_5_ForCausalLM": ERNIE4_5,
    "HunYuanDenseV1ForCausalLM": HUNYUAN_DENSE,
    "SeedOssForCausalLM": SEED_OSS,
}
