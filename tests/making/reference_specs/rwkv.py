"""RWKV-6 and its relatives, of which transformers has no class."""

from typing import Any

from arwkv7_model import RwkvHybridForCausalLM
from reference_models import N_VOCAB
from reference_spec import SPECIAL_IDS, Spec, sizes
from rwkv6_model import Rwkv6ForCausalLM, RWKV6Qwen2ForCausalLM
from transformers import PreTrainedConfig


def rwkv6(n: int, head: int, layers: int, **more: Any) -> Spec:
    """Return RWKV-6 with n values in heads of `head`, and the keys of published files."""
    sizes = {
        "hidden_size": n, "attention_hidden_size": n, "head_size": head, "head_size_divisor": 8,
        "num_attention_heads": 64, "num_hidden_layers": layers, "intermediate_size": None, "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": False, "vocab_size": N_VOCAB,
    }  # fmt: skip
    return Spec(
        architecture="rwkv6", model=Rwkv6ForCausalLM, config=PreTrainedConfig(**SPECIAL_IDS | sizes | more),
        written=lambda config: config | {"model_type": "rwkv6"},
    )  # fmt: skip


def qrwkv(*counts: int, rank: int, decay_rank: int, **more: Any) -> Spec:
    """Return QRWKV with these numbers of heads, heads of keys and values, and layers."""
    ranks = {"lora_rank_tokenshift": rank, "lora_rank_decay": decay_rank}
    return Spec(
        architecture="rwkv6qwen2", model=RWKV6Qwen2ForCausalLM,
        config=PreTrainedConfig(**sizes(*counts) | ranks | {"rms_norm_eps": 1e-6} | more),
        written=lambda config: config | {"model_type": "rwkv6qwen2", "hidden_act": "silu"},
    )  # fmt: skip


def arwkv7(n: int, head: int, layers: int, **has: bool) -> Spec:
    """Return ARWKV with n values in heads of `head`."""
    mixing = {
        "head_size": head, "head_size_divisor": 8, "num_wkv_heads": n // head, "wkv_layers": "full",
        "rms_norm_eps": 1e-6,
    }  # fmt: skip
    has_parts = {f"wkv_has_{part}": value for part, value in has.items()}
    return Spec(
        architecture="arwkv7", model=RwkvHybridForCausalLM,
        config=PreTrainedConfig(**sizes(4, 2, layers, hidden_size=n) | mixing | has_parts),
        written=lambda config: config | {"model_type": "rwkv_hybrid", "wkv_version": 7, "hidden_act": "silu"},
    )  # fmt: skip


MODELS = {
    "arwkv7": arwkv7(128, 64, 3, gate=True, group_norm=True),
    "arwkv7-plain": arwkv7(192, 64, 2, gate=False, group_norm=False),
    "rwkv6qwen2": qrwkv(4, 2, 2, rank=32, decay_rank=64, hidden_size=128, attention_bias=True),
    "rwkv6qwen2-mqa": qrwkv(3, 1, 3, rank=64, decay_rank=32, attention_bias=False),
    "rwkv6": rwkv6(128, 32, 3, rescale_every=1),
    "rwkv6-wide-heads": rwkv6(192, 64, 2, rescale_every=6, intermediate_size=160),
}
