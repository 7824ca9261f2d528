"""Model files in the shapes of mixtures of experts, with random weights, for speed.py.

    python tests/benchmarks/mixtures.py /dev/shm                 # Qwen3-30B-A3B in Q4_K, gpt-oss-20b with MXFP4
    python tests/benchmarks/speed.py /dev/shm/gpt-oss.gguf -t 2

Two layers each, and a small vocabulary: what is timed is the layers. Needs the dependency group `test`.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from synthetic import vocabulary, write_file

sys.path[:0] = [str(Path(__file__).parents[1])]

import tiny  # noqa: E402

N_LAYER, N_VOCAB = 2, 4096


@dataclass(frozen=True)
class Mixture:
    """`width` is that of an expert; experts have one type, other matrices another."""

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
            shapes |= self.of_gpt_oss(blk) if name == "gpt-oss" else self.of_qwen3(blk)
        return shapes

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

    def type_of(self, name: str, shape: tuple[int, ...]) -> str:
        if len(shape) == 1 or name.endswith(".bias") or "gate_inp" in name:
            return "F32"
        return self.experts if "_exps" in name else self.others

    def metadata(self, name: str) -> dict[str, tiny.Metadatum]:
        d = self.dimensions
        own = {
            "vocab_size": N_VOCAB,
            "attention.key_length": d.head_dim,
            "attention.value_length": d.head_dim,
            "expert_count": self.n_expert,
            "expert_used_count": self.n_used,
            "expert_feed_forward_length": self.width,
            **({"attention.sliding_window": d.sliding_window} if d.sliding_window else {}),
        }
        return (
            tiny.common_metadata(name, d) | {f"{name}.{key}": value for key, value in own.items()} | vocabulary(N_VOCAB)
        )


MIXTURES = {
    "qwen3moe": Mixture(
        tiny.Dimensions(
            n_layer=N_LAYER, n_embd=2048, n_ff=6144, n_head=32, n_head_kv=4, head_dim=128, n_ctx=32768, tied=False
        ),
        n_expert=128, n_used=8, width=768, experts="Q4_K", others="Q4_K",
    ),
    "gpt-oss": Mixture(
        tiny.Dimensions(
            n_layer=N_LAYER, n_embd=2880, n_ff=2880, n_head=64, n_head_kv=8, head_dim=64, n_ctx=32768,
            sliding_window=128, tied=False,
        ),
        n_expert=32, n_used=4, width=2880, experts="MXFP4", others="Q8_0",
    ),
}  # fmt: skip


def main() -> None:
    """Write both files."""
    for name, mixture in MIXTURES.items():
        shapes = mixture.shapes(name)
        types = {key: mixture.type_of(key, shape) for key, shape in shapes.items()}
        path = write_file(Path(sys.argv[1]) / f"{name}.gguf", mixture.metadata(name), shapes, types)
        print(f"{path}: {path.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
