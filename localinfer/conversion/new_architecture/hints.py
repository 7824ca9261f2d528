"""What a difference between a checkpoint and a known architecture usually means, in terms of this program."""

import re
from collections.abc import Mapping, Sequence

from localinfer.graph.feed_forward import ACTIVATIONS, XIELU

GRAPH_ACTIVATIONS: Mapping[str, str] = {**ACTIVATIONS, "relu": "relu", "relu2": "relu_squared", "xielu": XIELU}
MISSING_KINDS = (  # pattern of kinds, hint
    (r"ffn_gate", "DecoderSpec(gated=False), or gate and up are one matrix"),
    (r"attn_norm", "DecoderSpec(pre_norms=NO_BRANCH_NORMS), or g.use_layer_norm(weights=False)"),
    (r"ffn_norm", "DecoderSpec(parallel=True) if the branches share a norm, or pre_norms=NO_BRANCH_NORMS"),
    (r"output_norm", 'the conversion has output_norm=""; DecoderSpec(output_norm=...) for another name'),
    (r"output", 'the embedding may also be the output layer: defaults={"tie_word_embeddings": True} in the conversion'),
    (r"attn_[qk]_norm", "AttentionSpec without head_norm, DecoderSpec without row_norm"),
    (r"post_.*norm", "DecoderSpec without post_norms"),
    (r"attn_[qkv](\.bias)?", "queries, keys and values may be one matrix (attn_qkv), or attention another one"),
)  # fmt: skip
UNEXPECTED_KINDS = (
    (r"attn_[qk]_norm", 'AttentionSpec(head_norm="before_rope") for single heads, DecoderSpec(row_norm=True) for all'),
    (r"post_(attention|ffw)_norm", "DecoderSpec(post_norms=POST_NORMS)"),
    (r".*_sub_norm", "DecoderSpec(sub_norms=True)"),
    (r"attn_sinks", "attention sinks, as in gpt_oss"),
    (r"attn_gate", "gated attention, as in afmoe and qwen35"),
    (r"attn_(q_a|q_b|kv_a|kv_b|k_b|v_b).*", "multi-head latent attention, as in deepseek2 and plm"),
    (r"ffn_gate_inp.*|.*_exps.*|exp_probs_b.*", "DecoderSpec(router=read_router(g, ...)), as in qwen3moe and dots1"),
    (r".*_shexp.*", "a shared expert, which is computed if the file has it"),
    (r"ssm_.*|shortconv.*|time_mix.*", "a recurrent layer, as in mamba2, qwen35, lfm2 and rwkv7"),
    (r".*\.bias", "biases are added if the file has them"),
)  # fmt: skip
KEYS = (
    (r".*softcap.*|.*logit_cap.*", "a soft cap: AttentionSpec(cap=...), DecoderSpec(logit_cap=...)"),
    (r".*emb.*(scale|multiplier).*|scale_emb.*", "DecoderSpec(embedding_scale=...)"),
    (r"residual.*|scale_depth", "DecoderSpec(residual_scale=...)"),
    (r"logits?_(scale|scaling|multiplier)|dim_model_base", "DecoderSpec(logit_scale=...)"),
    (r"attention_multiplier|query_pre_attn_scalar|attn.*scal.*", "AttentionSpec(scale=...)"),
    (r".*cl[ia]m?p.*", "limited magnitudes: g.clip"),
    (r".*no_?rope.*", "layers without rotary embeddings, as in smollm3, cohere2 and exaone4"),
    (r".*window.*|layer_types|.*chunk.*", "sliding windows: window_period or may_have_window in the conversion"),
    (r".*qk?_?(layer)?norm.*", "normalized queries and keys: AttentionSpec(head_norm=...), DecoderSpec(row_norm=True)"),
    (r".*lora_rank|.*(nope|rope|v)_head_dim|qk_head_dim", "multi-head latent attention, as in deepseek2 and plm"),
    (r".*(expert|moe|rout|topk|top_k|scoring).*", "a mixture of experts: read_router(g, ...), expert_metadata"),
    (r".*(conv|ssm|mamba|state|linear_|delta|recurrent).*", "recurrent layers, as in mamba2, qwen35 and lfm2"),
    (r".*parallel.*", "DecoderSpec(parallel=True)"),
    (r".*alibi.*", "ALiBi, as in bloom and mpt"),
    (r".*rope.*|.*rotary.*", "rotary embeddings: g.rope, has_partial_rope in the conversion"),
    (r".*(mtp|nextn).*", "multi-token prediction layers: has_mtp in the conversion"),
    (r".*bias.*", "biases are added if the file has them"),
    (r".*norm.*", "the kind of norms: g.use_layer_norm()"),
    (r".*(multiplier|scale|scaling|factor).*", "a factor"),
)  # fmt: skip


def hint(name: str, table: Sequence[tuple[str, str]]) -> str:
    """Return the hint for a kind of tensor or a key of config.json; "" if there is none."""
    return next((text for pattern, text in table if re.fullmatch(pattern, name)), "")


def activation_hint(name: str) -> str:
    """Return how an activation of config.json is written in an architecture file."""
    known = GRAPH_ACTIVATIONS.get(name)
    return f"DecoderSpec(activation={known!r})" if known else "the graph has no such activation yet"
