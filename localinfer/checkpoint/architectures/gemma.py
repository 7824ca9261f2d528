"""Gemma, from the first to 3n and 4, and the embeddings made from the third."""

from dataclasses import replace

from localinfer.checkpoint import own_blocks, own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import APART, BEFORE, BEHIND, EXACT_GELU, GATED, GELU, HEAD_NORMS
from localinfer.checkpoint.architectures.llama import LLAMA
from localinfer.checkpoint.stored import reorder

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
GEMMA_EMBEDDING = replace(
    GEMMA3, name="gemma-embedding", encoder=True, model=("output_norm",), fixed={"use_bidirectional_attention": True}
)
GEMMA4 = Architecture(
    name="gemma4",
    block=(*BEFORE, *BEHIND, *APART, *GATED, *HEAD_NORMS),
    optional=(
        "layer_output_scale", "inp_gate", "proj", "post_norm", "ffn_gate_inp", "ffn_gate_inp.scale",
        "ffn_gate_up_exps", "ffn_down_exps", "ffn_down_exps.scale", "pre_ffw_norm_2", "post_ffw_norm_1",
        "post_ffw_norm_2",
    ),
    optional_model=("per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm"),
    activation=GELU,
    period=6,
    every_window=True,
    window_rope=True,
    scales={"final_logit_softcapping": "final_logit_softcapping"},
    merges_characters="gemma4",
    sizes={"ffn_gate_up_exps": ("n_expert", "n_gate_and_up_expert", "n_embd")},
    names={"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"},
    spellings={"num_experts_per_tok": "top_k_experts"},
    own_keys=own_blocks.gemma4,
    own_blocks=own_blocks.blocks_of_gemma4,
    fixed={"attention_bias": False, "use_bidirectional_attention": "vision"},  # of pictures only
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"},
)  # fmt: skip
GEMMA3N = Architecture(
    name="gemma3n",
    block=(
        *BEFORE, *BEHIND, *APART, *GATED, *HEAD_NORMS, "inp_gate", "proj", "post_norm", "altup_router",
        "altup_router_norm", "altup_predict_coef", "altup_correct_coef", "altup_correct_scale", "laurel_l", "laurel_r",
        "laurel_post_norm",
    ),
    model=("per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm", "altup_proj", "altup_unembd_proj"),
    sizes={"per_layer_token_embd": ("n_vocab_input", "n_inputs")},
    folded={"per_layer_token_embd": ("n_vocab", "n_inputs")},
    reorder={"per_layer_token_embd": reorder.to_whole_vocabulary},
    activation=GELU,
    period=5,
    every_window=True,
    window_rope=True,
    scales={"final_logit_softcapping": "final_logit_softcapping"},
    own_numbers=own_keys.numbers_of_gemma3n,
    own_keys=own_keys.streams_and_sparsity,
    own_blocks=own_blocks.blocks_of_gemma3n,
    fixed={"attention_bias": False, "altup_active_idx": 0, "altup_correct_scale": True},
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6},
)  # fmt: skip
BY_CLASS = {
    "GemmaForCausalLM": GEMMA,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": GEMMA3,
    "Gemma3TextModel": GEMMA_EMBEDDING,
    "Gemma4ForCausalLM": GEMMA4,
    "Gemma4ForConditionalGeneration": GEMMA4,
    "Gemma3nForCausalLM": GEMMA3N,
    "Gemma3nForConditionalGeneration": GEMMA3N,
}
