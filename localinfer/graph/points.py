"""The points of a model: the activations that hooks can read and change, by name.

A point of a layer has the prefix `blk.N.`. Names are those of the tensors in the GGUF file where a tensor makes the
activations: `blk.3.attn_q` is the product with `blk.3.attn_q.weight`, `blk.3.attn_norm` the output of that norm. In the
encoders of images and sounds, all products, norms and convolutions with tensors are points. Their names begin as in
projector files.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from localinfer.errors import UsageError

ATTENTION_WEIGHTS, QUERIES, KEYS, VALUES = "attn_weights", "attn_q_rope", "attn_k_rope", "attn_v"

POINTS: Mapping[str, str] = {
    "token_embd": "token embeddings, with the model's scale, before positions and token types are added",
    "resid_pre": "residual stream before the layer",
    "resid_mid": "residual stream between attention (or what replaces it) and feed-forward network",
    "resid_post": "residual stream after the layer",
    "attn_norm": "norm before attention, or before a recurrent layer",
    "attn_norm_2": "second norm of the residual stream: of the feed-forward network, or of a parallel branch",
    "attn_q": "queries before norm and RoPE, head after head; with gated attention, each head and its gates",
    "attn_k": "keys before norm and RoPE, head after head",
    VALUES: "values, head after head",
    "attn_q_norm": "queries after a norm of whole rows, before RoPE",
    "attn_k_norm": "keys after a norm of whole rows, before RoPE",
    QUERIES: "queries after norm and RoPE, as they are compared with keys",
    KEYS: "keys after norm and RoPE, before the KV cache rounds them",
    ATTENTION_WEIGHTS: "attention weights (heads, tokens, tokens), computed from queries and keys; cannot be changed",
    "attn_heads": "outputs of the attention heads, head after head",
    "attn_sub_norm": "norm of the heads' outputs",
    "attn_output": "product with the output matrix of attention",
    "attn_o": "product with the output matrix of attention (T5)",
    "cross_attn_norm": "norm before cross-attention",
    "cross_attn_q": "queries of cross-attention, head after head",
    "cross_attn_k": "keys of the encoder's output for cross-attention, head after head",
    "cross_attn_v": "values of the encoder's output for cross-attention, head after head",
    "cross_attn_heads": "outputs of the heads of cross-attention, head after head",
    "cross_attn_o": "product with the output matrix of cross-attention",
    "post_attention_norm": "norm of the attention branch, or of the residual stream after it",
    "attn_out": "output of the attention branch (or of what replaces it), which is added to the residual stream",
    "attn_output_norm": "residual stream after attention and its norm (encoders)",
    "ffn_norm": "norm before the feed-forward network",
    "ffn_gate": "gate of the feed-forward network, before the activation function",
    "ffn_up": "up projection of the feed-forward network",
    "ffn_act": "act(gate) * up, or act(up) without a gate: the neurons",
    "ffn_act_1": "neurons of the second feed-forward network of a layer (encoders of sounds)",
    "ffn_sub_norm": "norm of the neurons",
    "ffn_down": "product with the down projection",
    "ffn_gate_inp": "logits of the router of a mixture of experts",
    "ffn_expert_ids": "chosen experts, int32, in the order of the router's choice; cannot be changed",
    "ffn_expert_weights": "weights of the chosen experts",
    "ffn_gate_exps": "gates of the chosen experts, before the activation function, expert after expert",
    "ffn_up_exps": "up projections of the chosen experts, expert after expert",
    "ffn_gate_up_exps": "both of them in one product: gate and up of the first expert, of the second one, ...",
    "ffn_gate_chexps": "gates of the adjugate experts of the chosen experts, before the activation function",
    "ffn_up_chexps": "up projections of the adjugate experts of the chosen experts",
    "ffn_experts": "weighted sum of the chosen experts' outputs",
    "ffn_gate_shexp": "gate of the shared expert, before the activation function",
    "ffn_up_shexp": "up projection of the shared expert",
    "ffn_down_shexp": "output of the shared expert, before its sigmoid gate",
    "post_ffw_norm": "norm of the feed-forward branch",
    "ffn_out": "output of the feed-forward branch, which is added to the residual stream",
    "layer_output_norm": "residual stream after the feed-forward network and its norm (encoders)",
    "attn_kv": "keys of compressed attention, which are the values, too, before norm and RoPE",
    "attn_compressor_kv": "what the compressed keys of runs are means of",
    "attn_compressor_gate": "scores of the weights of these means",
    "attn_compressor_norm": "compressed keys after their norm, before RoPE: in the rows of the last positions of runs",
    "indexer_compressor_kv": "as attn_compressor_kv, for the keys of the indexer",
    "indexer_compressor_gate": "as attn_compressor_gate, for the keys of the indexer",
    "indexer_compressor_norm": "as attn_compressor_norm, for the keys of the indexer",
    "attn_output_b": "product with the last output matrix of compressed attention",
    "hc_attn_fn": "logits of the weights with which attention reads and mixes the residual streams",
    "hc_ffn_fn": "logits of the weights with which the feed-forward network reads and mixes the residual streams",
    "attn_res_score": "mean of the residual streams that attention reads (attention residuals)",
    "ffn_res_score": "mean of the residual streams that the feed-forward network reads (attention residuals)",
    "output_res_score": "mean of the residual streams after the last layer (attention residuals)",
    "ffn_routed_down": "latent vectors that experts process (Kimi K3)",
    "ffn_routed_norm": "norm of the sum of the experts' outputs, before it is mapped back (Kimi K3)",
    "ffn_routed_up": "output of the experts that process latent vectors (Kimi K3)",
    "hc_attn_down": "gates of the residual streams that attention reads, at a low rank (Qwen4-Exp)",
    "hc_attn_up": "gates of the residual streams that attention reads, before the sigmoid",
    "hc_attn_inject": "weights with which the streams add the output of attention, before scale and sigmoid",
    "hc_ffn_down": "as hc_attn_down, for the feed-forward network",
    "hc_ffn_up": "as hc_attn_up, for the feed-forward network",
    "hc_ffn_inject": "as hc_attn_inject, for the feed-forward network",
    "ple_key": "keys of a token's n-grams, one for each residual stream, before their norm",
    "ple_value": "value of a token's n-grams",
    "ple_conv1d": "convolution of the values of n-grams, after the activation function",
    "ple_conv1d_state": "inputs of this convolution at the last tokens of a batch, which the next tokens continue",
    "indexer.attn_q_b": "queries of the indexer of sparse attention, before RoPE",
    "indexer.attn_k": "keys of the indexer, before norm and RoPE",
    "indexer.k_norm": "keys of the indexer after their norm, before RoPE",
    "indexer.proj": "weights of the indexer's heads",
    "indexer.q_proj": "queries of an indexer of blocks or runs, before norm and RoPE",
    "indexer.k_proj": "keys of an indexer of blocks or runs, before norm and RoPE; those of runs are means",
    "ssm_gate": "gates of a Mamba layer, before the activation function",
    "attn_gate": "gates of a gated delta net, or of the heads of latent attention, before the activation function",
    "ssm_conv1d": "convolution of a recurrent layer, after the activation function",
    "ssm_conv1d_state": "inputs of the convolution at the last tokens of a batch, which the next tokens continue",
    "ssm_conv1d_q": "convolution of the queries of Kimi Delta Attention, after the activation function",
    "ssm_conv1d_k": "convolution of its keys, likewise",
    "ssm_conv1d_v": "convolution of its values, likewise",
    "ssm_conv1d_q_state": "inputs of the convolution of queries at the last tokens of a batch",
    "ssm_conv1d_k_state": "inputs of the convolution of keys, likewise",
    "ssm_conv1d_v_state": "inputs of the convolution of values, likewise",
    "ssm_f_a": "decays of Kimi Delta Attention at a low rank, or of all channels if there is no ssm_f_b",
    "ssm_f_b": "decays of the channels of Kimi Delta Attention, before bias and activation function",
    "ssm_g_a": "output gates of Kimi Delta Attention, as ssm_f_a has the decays",
    "ssm_g_b": "output gates of Kimi Delta Attention, before the sigmoid",
    "ssm_g": "output gates of Kimi Delta Attention from one matrix, before the sigmoid",
    "ssm_dt": "time steps of a Mamba layer, before bias (Mamba 2) and softplus",
    "ssm_b": "matrix B of a selective scan (Mamba): what the state takes in",
    "ssm_c": "matrix C of a selective scan (Mamba): what is read from the state",
    "ssm_alpha": "rates of decay of a gated delta net, one for each head, before bias and softplus",
    "ssm_beta": "learning rates of a gated delta net, one for each head, before the sigmoid",
    "ssm_heads": "output of the recurrent state, before gates and norm",
    "ssm_state": "recurrent state after the last token of a batch: (heads, key, value), for Mamba (columns, state)",
    "ssm_norm": "norm of the recurrent heads' outputs",
    "ssm_out": "product with the output matrix of a recurrent layer",
    "shortconv.input_gate": "gates of the inputs of a short convolution",
    "shortconv.output_gate": "gates of the outputs of a short convolution",
    "shortconv.conv": "short convolution",
    "shortconv.conv_state": "gated inputs of a short convolution at the last tokens of a batch",
    "shortconv.out_proj": "product with the output matrix of a short convolution",
    "time_mix_shift_state": "norm of the last token of a batch, which the time mixing of the next token reads",
    "time_mix_receptance": "receptance (queries) of a time mixing (RWKV)",
    "time_mix_key": "keys of a time mixing, before their correction",
    "time_mix_value": "values of a time mixing",
    "time_mix_v": "share of the first layer's values, before the sigmoid",
    "time_mix_w": "decay of each key dimension, before the activation function",
    "time_mix_a": "in-context learning rate of each key dimension, before the sigmoid",
    "time_mix_g": "gate of the time mixing's output",
    "time_mix_decay_w2": "decay of each key dimension of RWKV-6, before bias and activation functions",
    "time_mix_gate": "gate of the time mixing's output in RWKV-6, before the activation function",
    "time_mix_state": "state matrices of a time mixing after the last token of a batch: (heads, key, value)",
    "time_mix_heads": "output of a time mixing's heads, normalized but in QRWKV and in some of ARWKV, before the gate",
    "time_mix_output": "output of a time mixing, which is added to the residual stream",
    "channel_mix_shift_state": "norm of the last token of a batch, which the channel mixing of the next token reads",
    "channel_mix_key": "keys (neurons) of a channel mixing, before the activation function",
    "channel_mix_value": "output of a channel mixing, which is added to the residual stream (RWKV-6: before the gate)",
    "channel_mix_receptance": "gate of a channel mixing's output (RWKV-6), before the sigmoid",
    "enc.token_embd": "rows of the embedding for the tokens of an encoder",
    "enc.output_norm": "output of an encoder-decoder model's encoder",
    "output_norm": "hidden states after the output norm, of the tokens whose logits are computed",
    "logits": "logits, of the tokens whose logits are computed",
    "v.patch_embd": "patches times the patch embedding, with its bias and learned positions",
    "ln1": "norm before attention (encoders of images and sounds)",
    "ln2": "norm before the feed-forward network (encoders of images and sounds), or of a conformer's layer",
    "v.output": "rows of an image that enter the language model",
    "a.output": "rows of a sound that enter the language model",
}
OF_TENSOR = "product, norm or convolution with the tensor of this name"
ENCODER_PREFIXES = ("v.", "a.", "mm.", "resampler.")
LAYER = re.compile(r"(([va]|enc|dec)\.(sam\.)?)?blk\.(\d+\.)+")
READ_ONLY = ATTENTION_WEIGHTS, "ffn_expert_ids"
N_SUGGESTIONS = 5


def kind(name: str) -> str:
    """Return the name of a point without its layer: the key of `POINTS`."""
    return LAYER.sub("", name, count=1) if LAYER.match(name) else name


def is_of_encoder(name: str) -> bool:
    """Return whether a point belongs to the encoder of images or sounds."""
    return name.startswith(ENCODER_PREFIXES)


def is_point(name: str) -> bool:
    """Return whether activations of this name are a point."""
    return kind(name) in POINTS or is_of_encoder(name)


def description(name: str) -> str:
    """Return what the activations at a point are."""
    return POINTS.get(kind(name), OF_TENSOR)


def matching(patterns: Iterable[str], names: Collection[str]) -> Sequence[str]:
    """Return the names that match any of the patterns, in the order of `names`. A pattern may have the wildcards `*`,
    `?` and `[...]`.

    Raises UsageError for a pattern that matches no name; it lists similar ones.
    """
    from fnmatch import fnmatchcase

    found: set[str] = set()
    for pattern in patterns:
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            raise UsageError(f"{pattern}: the model has no such point{suggestions(pattern, names)}")
        found.update(matches)
    return [name for name in names if name in found]


def may_match_encoders(patterns: Iterable[str]) -> bool:
    """Return whether patterns may match points of encoders: names that begin like theirs, or with a wildcard."""
    return any(is_of_encoder(pattern) or pattern.startswith(tuple("*?[")) for pattern in patterns)


def suggestions(pattern: str, names: Collection[str]) -> str:
    """Return the end of an error message: similar names, if there are any."""
    from difflib import get_close_matches

    similar = get_close_matches(pattern, names, N_SUGGESTIONS) or get_close_matches(
        kind(pattern), sorted({kind(name) for name in names}), N_SUGGESTIONS
    )
    return f"; similar: {', '.join(similar)}" if similar else "; `localinfer inspect MODEL --points` lists all"
