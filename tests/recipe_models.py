"""Models that recipes are tried on: metadata and tensor shapes, without any weights.

Small in every dimension but the number of layers, which the rules look at. Shapes are numpy's, (n_out, n_in).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Shape:
    """`n_expert` experts share a layer; `odd` rows are no multiples of 256, and some not even of 32."""

    architecture: str
    n_layer: int
    n_head: int = 4
    n_head_kv: int = 4
    n_expert: int = 0
    tied: bool = False
    n_embd: int = 256
    n_ff: int = 512
    more: Mapping[str, float] = field(default_factory=dict)

    @property
    def metadata(self) -> dict[str, int | float]:
        """The keys behind the architecture's name, with integers as u32 and floats as f32."""
        return {
            "block_count": self.n_layer,
            "context_length": 512,
            "embedding_length": self.n_embd,
            "feed_forward_length": self.n_ff,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "vocab_size": 32,
            **({"expert_count": self.n_expert, "expert_used_count": 2} if self.n_expert else {}),
            **self.more,
        }

    @property
    def tensors(self) -> Shapes:
        shapes: Shapes = {"token_embd.weight": (32, self.n_embd), "output_norm.weight": (self.n_embd,)}
        if not self.tied:
            shapes["output.weight"] = (32, self.n_embd)
        for layer in range(self.n_layer):
            for name, shape in self.layer.items():
                shapes[f"blk.{layer}.{name}.weight"] = shape
        return shapes

    @property
    def layer(self) -> Shapes:
        """The tensors of one layer."""
        head = self.n_embd // self.n_head
        kv = head * self.n_head_kv
        up, down = (self.n_ff, self.n_embd), (self.n_embd, self.n_ff)
        attention: Shapes = {
            "attn_norm": (self.n_embd,),
            "attn_output": (self.n_embd, self.n_embd),
            "ffn_norm": (self.n_embd,),
        }
        if self.architecture == "falcon":
            return attention | {"attn_qkv": (self.n_embd + 2 * kv, self.n_embd), "ffn_up": up, "ffn_down": down}
        if self.architecture == "deepseek2":
            attention |= latent(self.n_head, self.n_embd)
        else:
            attention |= self.apart(kv)
        if not self.n_expert:
            return attention | {"ffn_gate": up, "ffn_up": up, "ffn_down": down}
        experts = {f"ffn_{name}_exps": (self.n_expert, *up) for name in ("gate", "up")}
        router = {"ffn_gate_inp": (self.n_expert, self.n_embd)}
        return attention | router | experts | {"ffn_down_exps": (self.n_expert, *down)}

    def apart(self, kv: int) -> Shapes:
        return {"attn_q": (self.n_embd, self.n_embd), "attn_k": (kv, self.n_embd), "attn_v": (kv, self.n_embd)}


def latent(n_head: int, n_embd: int) -> Shapes:
    """Latent attention, with queries that go through a narrow place."""
    return {
        "attn_q_a": (64, n_embd),
        "attn_q_a_norm": (64,),
        "attn_q_b": (n_head * 64, 64),
        "attn_kv_a_mqa": (288, n_embd),
        "attn_kv_a_norm": (256,),
        "attn_k_b": (n_head, 256, 32),
        "attn_v_b": (n_head, 32, 256),
    }


LATENT = {
    "attention.kv_lora_rank": 256,
    "attention.key_length": 288,
    "attention.value_length": 256,
    "attention.key_length_mla": 64,
    "attention.value_length_mla": 32,
    "rope.dimension_count": 32,
    "expert_feed_forward_length": 512,
    "expert_shared_count": 0,
}
SHAPES = {
    "llama": Shape("llama", 22, n_head_kv=2, tied=True),
    "llama, grouped": Shape("llama", 32, n_head_kv=1),
    "llama, 70B": Shape("llama", 80, n_head_kv=2),
    "llama, odd": Shape("llama", 9, n_head=3, n_head_kv=3, n_embd=96, n_ff=80),
    "gemma3": Shape("gemma3", 26, n_head_kv=1, tied=True, more={"attention.sliding_window": 512}),
    "8 experts": Shape("llama", 32, n_head_kv=1, n_expert=8),
    "16 experts": Shape("llama", 24, n_expert=16),
    "falcon": Shape("falcon", 32, n_head_kv=1, more={"attention.layer_norm_epsilon": 1e-5}),
    "qwen2": Shape("qwen2", 28, n_head_kv=1),
    "deepseek2": Shape("deepseek2", 27, n_head_kv=1, n_expert=16, more=LATENT),
}
