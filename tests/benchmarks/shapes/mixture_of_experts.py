"""Writes model files in the shapes of mixture-of-experts models, with random weights, for speed.py.

    python tests/benchmarks/shapes/mixture_of_experts.py /dev/shm            # Qwen3-30B-A3B, gpt-oss-20b, ...
    python tests/benchmarks/speed.py /dev/shm/gpt-oss.gguf -t 2
    python tests/benchmarks/shapes/mixture_of_experts.py /dev/shm deepseek2  # DeepSeek-V2-Lite alone
    python tests/benchmarks/speed.py /dev/shm/deepseek2.gguf -t 2 -d 4096

Each model has two layers and a small vocabulary, because the benchmark measures the layers, and DeepSeek-V3.2 and
V4-Flash 16 of their 256 experts. Needs the dependency group `test`.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import tiny  # noqa: E402
from synthetic import vocabulary, write_file  # noqa: E402

N_LAYER, N_VOCAB = 2, 4096
FLOATS = ("gate_inp", "hc_", "_ape", "indexer.proj")  # in the names of matrices in F32
RANK, PLAIN, TURNING = 512, 128, 64  # multi-head latent attention of DeepSeek-V2-Lite
LATENT: dict[str, tiny.Metadatum] = {
    "attention.key_length": RANK + TURNING,
    "attention.value_length": RANK,
    "attention.key_length_mla": PLAIN + TURNING,
    "attention.value_length_mla": PLAIN,
    "attention.kv_lora_rank": RANK,
    "attention.q_lora_rank": 0,  # required by llama.cpp unless there are 27 layers
    "rope.dimension_count": TURNING,
    "expert_shared_count": 2,
    "expert_gating_func": 1,
    "expert_weights_scale": 1.0,
}
QUERY_RANK, INDEXER_HEADS, INDEXER_LENGTH = 1536, 64, 128  # of DeepSeek-V3.2
SPARSE: dict[str, tiny.Metadatum] = LATENT | {
    "attention.q_lora_rank": QUERY_RANK,
    "attention.indexer.head_count": INDEXER_HEADS,
    "attention.indexer.key_length": INDEXER_LENGTH,
    "attention.indexer.top_k": 2048,
    "expert_shared_count": 1,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
}
RUNS, STREAMS, OUTPUT_GROUPS, OUTPUT_RANK, NARROW = (4, 128), 4, 8, 1024, 1024  # of DeepSeek-V4-Flash
COMPRESSED: dict[str, tiny.Metadatum] = {
    "attention.sliding_window": 128,
    "attention.q_lora_rank": NARROW,
    "attention.output_group_count": OUTPUT_GROUPS,
    "attention.output_lora_rank": OUTPUT_RANK,
    "attention.indexer.head_count": INDEXER_HEADS,
    "attention.indexer.key_length": INDEXER_LENGTH,
    "attention.indexer.top_k": 512,
    "attention.compress_ratios": tiny.Field("ARRAY", list(RUNS), "INT32"),
    "attention.compress_rope_freq_base": 160_000.0,
    "hyper_connection.count": STREAMS,
    "hyper_connection.sinkhorn_iterations": 20,
    "hyper_connection.epsilon": 1e-6,
    "hash_layer_count": 0,
    "swiglu_clamp_exp": tiny.Field("ARRAY", [10.0] * N_LAYER, "FLOAT32"),
    "swiglu_clamp_shexp": tiny.Field("ARRAY", [10.0] * N_LAYER, "FLOAT32"),
    "embedding_length_out": STREAMS * 4096,
    "rope.dimension_count": TURNING,
    "expert_shared_count": 1,
    "expert_gating_func": 4,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
}


@dataclass(frozen=True)
class MixtureShape:
    """A model shape. `width` is that of an expert.

    Experts have one tensor type and other matrices another; Q5_0 if the row length is no multiple of 256.
    """

    dimensions: tiny.Dimensions
    n_expert: int
    n_used: int
    width: int
    experts: str
    others: str

    def shapes(self, name: str) -> dict[str, tuple[int, ...]]:
        d = self.dimensions
        common = tiny.common_shapes(d, N_VOCAB)
        shapes = {key: shape for key, shape in common.items() if ".ffn_" not in key}
        for layer in range(d.n_layer):
            blk, wide, narrow = f"blk.{layer}", self.width, d.n_embd
            shapes |= {
                f"{blk}.ffn_gate_inp.weight": (self.n_expert, narrow),
                f"{blk}.ffn_gate_exps.weight": (self.n_expert, wide, narrow),
                f"{blk}.ffn_up_exps.weight": (self.n_expert, wide, narrow),
                f"{blk}.ffn_down_exps.weight": (self.n_expert, narrow, wide),
            }
            shapes |= {
                "gpt-oss": self.of_gpt_oss, "qwen3moe": self.of_qwen3, "deepseek2": self.of_deepseek2,
                "deepseek32": self.of_deepseek32, "deepseek4": self.of_deepseek4,
            }[name](blk)  # fmt: skip
        if name == "deepseek4":
            streams = STREAMS * d.n_embd
            shapes |= {"output_hc_fn.weight": (STREAMS, streams), "output_hc_base.weight": (STREAMS,)}
            shapes["output_hc_scale.weight"] = (1,)
        return {key: shape for key, shape in shapes.items() if shape[0]}

    def of_qwen3(self, blk: str) -> dict[str, tuple[int, ...]]:
        d = self.dimensions
        heads = {f"{blk}.attn_{each}_norm.weight": (d.head_dim,) for each in "qk"}
        return heads | {f"{blk}.ffn_norm.weight": (d.n_embd,)}

    def of_gpt_oss(self, blk: str) -> dict[str, tuple[int, ...]]:
        d = self.dimensions
        q, kv = d.n_head * d.head_dim, d.n_head_kv * d.head_dim
        lengths = {"attn_q": q, "attn_k": kv, "attn_v": kv, "attn_output": d.n_embd, "ffn_gate_inp": self.n_expert}
        widths = {"ffn_gate_exps": self.width, "ffn_up_exps": self.width, "ffn_down_exps": d.n_embd}
        return {
            f"{blk}.post_attention_norm.weight": (d.n_embd,),
            f"{blk}.attn_sinks.weight": (d.n_head,),
            **{f"{blk}.{name}.bias": (n,) for name, n in lengths.items()},
            **{f"{blk}.{name}.bias": (self.n_expert, n) for name, n in widths.items()},
        }

    def of_deepseek2(self, blk: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes for multi-head latent attention and two shared experts, without attn_k and attn_v."""
        d = self.dimensions
        return self.latent(blk, 2) | {f"{blk}.attn_q.weight": (d.n_head * (PLAIN + TURNING), d.n_embd)}

    def of_deepseek32(self, blk: str) -> dict[str, tuple[int, ...]]:
        """Return the same with an indexer, low-rank queries, and one shared expert."""
        n, heads = self.dimensions.n_embd, self.dimensions.n_head
        return self.latent(blk, 1) | {
            f"{blk}.attn_q.weight": (0, n),
            f"{blk}.attn_q_a.weight": (QUERY_RANK, n),
            f"{blk}.attn_q_a_norm.weight": (QUERY_RANK,),
            f"{blk}.attn_q_b.weight": (heads * (PLAIN + TURNING), QUERY_RANK),
            f"{blk}.indexer.attn_q_b.weight": (INDEXER_HEADS * INDEXER_LENGTH, QUERY_RANK),
            f"{blk}.indexer.attn_k.weight": (INDEXER_LENGTH, n),
            f"{blk}.indexer.k_norm.weight": (INDEXER_LENGTH,),
            f"{blk}.indexer.k_norm.bias": (INDEXER_LENGTH,),
            f"{blk}.indexer.proj.weight": (INDEXER_HEADS, n),
        }

    def of_deepseek4(self, blk: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes for compressed attention, hyper-connections and a shared expert."""
        d, run = self.dimensions, RUNS[int(blk[4:])]
        n, heads, size = d.n_embd, d.n_head, d.head_dim
        mixed = STREAMS * (STREAMS + 2)
        connections = {"fn": (mixed, STREAMS * n), "base": (mixed,), "scale": (3,)}
        compressors = {"attn": size, "indexer": INDEXER_LENGTH} if run == RUNS[0] else {"attn": size}
        shapes: dict[str, tuple[int, ...]] = {}
        for kind, length in compressors.items():
            width = 2 * length if run == RUNS[0] else length  # of two overlapping runs
            shapes |= {f"{kind}_compressor_{each}.weight": (width, n) for each in ("kv", "gate")}
            shapes |= {f"{kind}_compressor_ape.weight": (run, width), f"{kind}_compressor_norm.weight": (length,)}
        if run == RUNS[0]:
            shapes["indexer.attn_q_b.weight"] = (INDEXER_HEADS * INDEXER_LENGTH, NARROW)
            shapes["indexer.proj.weight"] = (INDEXER_HEADS, n)
        shapes |= dict.fromkeys(("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight"), (0, n))
        shapes |= {f"hc_{each}_{name}.weight": shape for each in ("attn", "ffn") for name, shape in connections.items()}
        shapes |= {
            "ffn_norm.weight": (n,),
            "attn_sinks.weight": (heads,),
            "attn_q_a.weight": (NARROW, n),
            "attn_q_a_norm.weight": (NARROW,),
            "attn_q_b.weight": (heads * size, NARROW),
            "attn_kv.weight": (size, n),
            "attn_kv_a_norm.weight": (size,),
            "attn_output_a.weight": (OUTPUT_GROUPS * OUTPUT_RANK, heads * size // OUTPUT_GROUPS),
            "attn_output_b.weight": (n, OUTPUT_GROUPS * OUTPUT_RANK),
            "exp_probs_b.bias": (self.n_expert,),
            "ffn_gate_shexp.weight": (self.width, n),
            "ffn_up_shexp.weight": (self.width, n),
            "ffn_down_shexp.weight": (n, self.width),
        }
        return {f"{blk}.{key}": shape for key, shape in shapes.items()}

    def latent(self, blk: str, shared_experts: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes for multi-head latent attention and shared experts, without those for queries."""
        n, heads, shared = self.dimensions.n_embd, self.dimensions.n_head, shared_experts * self.width
        return {
            f"{blk}.ffn_norm.weight": (n,),
            f"{blk}.attn_k.weight": (0, n),
            f"{blk}.attn_v.weight": (0, n),
            f"{blk}.attn_kv_a_mqa.weight": (RANK + TURNING, n),
            f"{blk}.attn_kv_a_norm.weight": (RANK,),
            f"{blk}.attn_k_b.weight": (heads, RANK, PLAIN),
            f"{blk}.attn_v_b.weight": (heads, PLAIN, RANK),
            f"{blk}.ffn_gate_shexp.weight": (shared, n),
            f"{blk}.ffn_up_shexp.weight": (shared, n),
            f"{blk}.ffn_down_shexp.weight": (n, shared),
        }

    def type_of(self, name: str, shape: tuple[int, ...]) -> str:
        if len(shape) == 1 or name.endswith(".bias") or any(part in name for part in FLOATS):
            return "F32"
        kind = self.experts if "_exps" in name else self.others
        return "Q5_0" if kind == "Q4_K" and shape[-1] % 256 else kind

    def metadata(self, name: str) -> dict[str, tiny.Metadatum]:
        d = self.dimensions
        keys = {
            "vocab_size": N_VOCAB,
            "attention.key_length": d.head_dim,
            "attention.value_length": d.head_dim,
            "expert_count": self.n_expert,
            "expert_used_count": self.n_used,
            "expert_feed_forward_length": self.width,
            **({"attention.sliding_window": d.sliding_window} if d.sliding_window else {}),
            **{"deepseek2": LATENT, "deepseek32": SPARSE, "deepseek4": COMPRESSED}.get(name, {}),
        }
        return (
            tiny.common_metadata(name, d) | {f"{name}.{key}": keys[key] for key in keys} | vocabulary(N_VOCAB)
        )


MIXTURES = {
    "qwen3moe": MixtureShape(
        tiny.Dimensions(
            n_layer=N_LAYER, n_embd=2048, n_ff=6144, n_head=32, n_head_kv=4, head_dim=128, n_ctx=32768, tied=False
        ),
        n_expert=128, n_used=8, width=768, experts="Q4_K", others="Q4_K",
    ),
    "gpt-oss": MixtureShape(
        tiny.Dimensions(
            n_layer=N_LAYER, n_embd=2880, n_ff=2880, n_head=64, n_head_kv=8, head_dim=64, n_ctx=32768,
            sliding_window=128, tied=False,
        ),
        n_expert=32, n_used=4, width=2880, experts="MXFP4", others="Q8_0",
    ),
    "deepseek2": MixtureShape(
        tiny.Dimensions(
            n_layer=N_LAYER, n_embd=2048, n_ff=10944, n_head=16, n_head_kv=1, head_dim=PLAIN, n_ctx=32768, tied=False
        ),
        n_expert=64, n_used=6, width=1408, experts="Q4_K", others="Q4_K",
    ),
    "deepseek32": MixtureShape(
        tiny.Dimensions(
            n_layer=N_LAYER, n_embd=7168, n_ff=18432, n_head=128, n_head_kv=1, head_dim=PLAIN, n_ctx=32768, tied=False
        ),
        n_expert=16, n_used=8, width=2048, experts="Q4_K", others="Q4_K",
    ),
    "deepseek4": MixtureShape(
        tiny.Dimensions(
            n_layer=N_LAYER, n_embd=4096, n_ff=2048, n_head=64, n_head_kv=1, head_dim=512, n_ctx=32768, tied=False
        ),
        n_expert=16, n_used=6, width=2048, experts="Q4_K", others="Q4_K",
    ),
}  # fmt: skip


def main() -> None:
    """Write the named files, or all."""
    for name in sys.argv[2:] or MIXTURES:
        mixture = MIXTURES[name]
        shapes = mixture.shapes(name)
        types = {key: mixture.type_of(key, shape) for key, shape in shapes.items()}
        path = write_file(Path(sys.argv[1]) / f"{name}.gguf", mixture.metadata(name), shapes, types)
        print(f"{path}: {path.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
