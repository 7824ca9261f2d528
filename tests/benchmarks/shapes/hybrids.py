"""Writes model files in the shapes of recurrent and hybrid models, with random weights, for speed.py.

    python tests/benchmarks/shapes/hybrids.py /dev/shm          # Qwen3.5-4B, Mamba2-2.7B and RWKV7-World-2.9B in Q4_K_M
    python tests/benchmarks/shapes/hybrids.py /dev/shm rwkv7    # one of them
    python tests/benchmarks/speed.py /dev/shm/qwen35.gguf /dev/shm/mamba2.gguf -t 2

Each model has four layers (Qwen3.5: three gated delta nets and one attention layer) and a small vocabulary, because the
benchmark measures the layers. Needs the dependency group `test`.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import tiny  # noqa: E402
from synthetic import uses_more_bits, vocabulary, write_file  # noqa: E402

N_LAYER, N_VOCAB, WIDTH = 4, 4096, 4
Shapes = dict[str, tuple[int, ...]]

QWEN35 = tiny.Dimensions(
    n_layer=N_LAYER, n_embd=2560, n_ff=9216, n_head=16, n_head_kv=4, head_dim=256, n_ctx=32768, tied=False
)
QWEN35_SSM = {"state_size": 128, "group_count": 16, "time_step_rank": 32, "inner_size": 4096, "conv_kernel": WIDTH}
MAMBA2 = tiny.Dimensions(
    n_layer=N_LAYER, n_embd=2560, n_ff=0, n_head=0, n_head_kv=0, head_dim=0, n_ctx=32768, tied=False
)
MAMBA2_SSM = {"state_size": 128, "group_count": 1, "time_step_rank": 80, "inner_size": 5120, "conv_kernel": WIDTH}

RWKV7 = tiny.Dimensions(
    n_layer=N_LAYER, n_embd=2560, n_ff=10240, n_head=0, n_head_kv=0, head_dim=0, n_ctx=32768, tied=False
)
RWKV7_HEAD = 64
RWKV7_RANKS = {"w": ("decay", 96), "a": ("iclr", 96), "v": ("value_residual_mix", 64), "g": ("gate", 320)}


def qwen35() -> tuple[dict[str, tiny.Metadatum], Shapes]:
    """Return metadata and tensor shapes; the last of the four layers has attention."""
    d, ssm, shapes = QWEN35, QWEN35_SSM, tiny.common_shapes(QWEN35, N_VOCAB)
    keys, values, heads = ssm["group_count"] * ssm["state_size"], ssm["inner_size"], ssm["time_step_rank"]
    for layer in range(N_LAYER):
        blk = f"blk.{layer}"
        shapes[f"{blk}.post_attention_norm.weight"] = shapes.pop(f"{blk}.ffn_norm.weight")
        if layer == N_LAYER - 1:
            shapes[f"{blk}.attn_q.weight"] = (2 * d.n_head * d.head_dim, d.n_embd)
            shapes |= {f"{blk}.attn_{each}_norm.weight": (d.head_dim,) for each in "qk"}
            continue
        for each in ("q", "k", "v", "output"):
            del shapes[f"{blk}.attn_{each}.weight"]
        shapes |= {
            f"{blk}.attn_qkv.weight": (2 * keys + values, d.n_embd),
            f"{blk}.attn_gate.weight": (values, d.n_embd),
            f"{blk}.ssm_alpha.weight": (heads, d.n_embd),
            f"{blk}.ssm_beta.weight": (heads, d.n_embd),
            f"{blk}.ssm_conv1d.weight": (2 * keys + values, WIDTH),
            f"{blk}.ssm_dt.bias": (heads,),
            f"{blk}.ssm_a": (heads,),
            f"{blk}.ssm_norm.weight": (values // heads,),
            f"{blk}.ssm_out.weight": (d.n_embd, values),
        }
    values = {
        "attention.key_length": d.head_dim,
        "attention.value_length": d.head_dim,
        "rope.dimension_count": 64,
        "rope.freq_base": 1e7,
        "rope.dimension_sections": tiny.Field("ARRAY", [11, 11, 10, 0], "INT32"),
        "full_attention_interval": N_LAYER,
        **{f"ssm.{key}": value for key, value in ssm.items()},
    }
    return tiny.common_metadata("qwen35", d) | {f"qwen35.{key}": value for key, value in values.items()}, shapes


def mamba2() -> tuple[dict[str, tiny.Metadatum], Shapes]:
    """Return metadata and tensor shapes of a model without attention."""
    n, ssm = MAMBA2.n_embd, MAMBA2_SSM
    keys, values, heads = ssm["group_count"] * ssm["state_size"], ssm["inner_size"], ssm["time_step_rank"]
    shapes: Shapes = {"token_embd.weight": (N_VOCAB, n), "output_norm.weight": (n,), "output.weight": (N_VOCAB, n)}
    for layer in range(N_LAYER):
        blk = f"blk.{layer}"
        shapes |= {
            f"{blk}.attn_norm.weight": (n,),
            f"{blk}.ssm_in.weight": (2 * values + 2 * keys + heads, n),
            f"{blk}.ssm_conv1d.weight": (values + 2 * keys, WIDTH),
            f"{blk}.ssm_conv1d.bias": (values + 2 * keys,),
            f"{blk}.ssm_dt.bias": (heads,),
            f"{blk}.ssm_a": (heads, 1),
            f"{blk}.ssm_d": (heads, 1),
            f"{blk}.ssm_norm.weight": (ssm["group_count"], values // ssm["group_count"]),
            f"{blk}.ssm_out.weight": (n, values),
        }
    metadata = {f"mamba2.ssm.{key}": value for key, value in ssm.items()}
    return tiny.common_metadata("mamba2", MAMBA2) | metadata, shapes


def rwkv7() -> tuple[dict[str, tiny.Metadatum], Shapes]:
    """Return metadata and tensor shapes of a model with token shift."""
    n, n_ff = RWKV7.n_embd, RWKV7.n_ff
    shapes: Shapes = {"token_embd.weight": (N_VOCAB, n), "output.weight": (N_VOCAB, n)}
    shapes |= {f"{norm}.{each}": (n,) for norm in ("token_embd_norm", "output_norm") for each in ("weight", "bias")}
    for layer in range(N_LAYER):
        blk, norms = f"blk.{layer}", ("attn_norm", "attn_norm_2", "time_mix_ln")
        shapes |= {f"{blk}.{norm}.{each}": (n,) for norm in norms for each in ("weight", "bias")}
        shapes |= {f"{blk}.time_mix_{each}.weight": (n,) for each in ("k_k", "k_a", "r_k")}
        shapes |= {f"{blk}.time_mix_{each}.weight": (n, n) for each in ("key", "value", "receptance", "output")}
        for kind, (_, rank) in RWKV7_RANKS.items():
            shapes |= {f"{blk}.time_mix_{kind}0.weight": (n,)} if kind != "g" else {}
            width = RWKV7_RANKS["a"][1] if kind == "v" and layer == 0 else rank  # unused, but required by llama.cpp
            shapes |= {f"{blk}.time_mix_{kind}1.weight": (width, n), f"{blk}.time_mix_{kind}2.weight": (n, width)}
        shapes |= {
            f"{blk}.time_mix_lerp_fused.weight": (6, 1, 1, n),
            f"{blk}.channel_mix_lerp_k.weight": (n,),
            f"{blk}.channel_mix_key.weight": (n_ff, n),
            f"{blk}.channel_mix_value.weight": (n, n_ff),
        }
    metadata = {f"rwkv7.attention.{name}_lora_rank": rank for name, rank in RWKV7_RANKS.values()}
    metadata |= {"rwkv7.wkv.head_size": RWKV7_HEAD, "rwkv7.attention.layer_norm_epsilon": 1e-5}
    keys = tiny.common_metadata("rwkv7", RWKV7) | metadata
    del keys["rwkv7.attention.layer_norm_rms_epsilon"]
    return keys, shapes


def types(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Return the tensor types that llama-quantize uses for Q4_K_M."""

    def type_of(name: str) -> str:
        part = name.removesuffix(".weight").rpartition(".")[2]
        if len(shapes[name]) == 1 or part in ("ssm_conv1d", "ssm_a", "ssm_d", "ssm_norm") or "lerp" in part:
            return "F32"
        if part in (f"time_mix_{kind}{number}" for kind in RWKV7_RANKS for number in "12"):
            return "F16"
        if part == "output" or (part in ("attn_v", "ffn_down") and uses_more_bits(int(name.split(".")[1]), N_LAYER)):
            return "Q6_K"
        return "Q5_K" if part == "attn_qkv" else "Q4_K"

    return {name: type_of(name) for name in shapes}


def main() -> None:
    """Write the files."""
    models = {"qwen35": qwen35, "mamba2": mamba2, "rwkv7": rwkv7}
    for name in sys.argv[2:] or models:
        keys, shapes = models[name]()
        keys |= {f"{name}.vocab_size": N_VOCAB} | vocabulary(N_VOCAB)
        path = write_file(Path(sys.argv[1]) / f"{name}.gguf", keys, shapes, types(shapes))
        print(f"{path}: {path.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
