"""Writes model files in the shapes of dense models, with random weights, most in Q4_K_M, for speed.py and regress.py.

    python tests/benchmarks/shapes/dense.py /dev/shm                     # all of them
    python tests/benchmarks/shapes/dense.py /dev/shm phi3 heads-80       # some
    python tests/benchmarks/shapes/dense.py /dev/shm qwen3-4b --layers 36
    python tests/benchmarks/speed.py /dev/shm/phi3.gguf -t 2

The vocabulary is small, and large models have only two layers, because the benchmark measures the layers. `--layers N`
writes as many as the real model has, for machines with many cores. The shapes with heads of 80 to 128 values are for
`localinfer profile FILE -p 2048`, which shows the time of attention. Needs the dependency group `test`.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import tiny  # noqa: E402
from synthetic import RECIPES, vocabulary, write_file  # noqa: E402

N_VOCAB = 32_768

Shapes = dict[str, tuple[int, ...]]

REPLACEMENTS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}  # by llama.cpp, of types with 256 columns in other rows


@dataclass(frozen=True)
class DenseShape:
    """A model shape. `extra_metadata` has keys without the architecture prefix; a `fused` matrix replaces others."""

    architecture: str
    dimensions: tiny.Dimensions
    extra_metadata: Mapping[str, tiny.Metadatum] = field(default_factory=dict)
    norms: Mapping[str, int] = field(default_factory=dict)  # of each layer, in addition to the common ones
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    recipe: str = "Q4_K_M"

    def shapes(self) -> Shapes:
        shapes = tiny.common_shapes(self.dimensions, N_VOCAB)
        for layer in range(self.dimensions.n_layer):
            blk = f"blk.{layer}"
            shapes |= {f"{blk}.{name}.weight": (n,) for name, n in self.norms.items()}
            for name, parts in self.fused.items():
                rows = [shapes.pop(f"{blk}.{part}.weight", None) for part in parts]
                matrices = [shape for shape in rows if shape]
                shapes[f"{blk}.{name}.weight"] = (sum(n for n, _ in matrices), matrices[0][1])
        return shapes

    def metadata(self) -> dict[str, tiny.Metadatum]:
        d = self.dimensions
        heads = {"attention.key_length": d.head_dim, "attention.value_length": d.head_dim}
        keys = heads | {"rope.dimension_count": d.head_dim, "vocab_size": N_VOCAB} | dict(self.extra_metadata)
        common = tiny.common_metadata(self.architecture, d) | {"general.name": "random weights"}
        return common | {f"{self.architecture}.{key}": value for key, value in keys.items()} | vocabulary(N_VOCAB)

    def types(self) -> Iterator[tuple[str, str]]:
        recipe, n_layer = RECIPES[self.recipe], self.dimensions.n_layer
        for name, shape in self.shapes().items():
            table = name in ("token_embd.weight", "output.weight")
            kind = "F32" if len(shape) == 1 else recipe.tokens if table else recipe.type_of(name, n_layer)
            yield name, kind if shape[-1] % 256 == 0 else REPLACEMENTS.get(kind, kind)


def llama_shape(*, recipe: str = "Q4_K_M", **sizes: int) -> DenseShape:
    """Return a Llama with these dimensions, whatever the architecture of the model that has them."""
    return DenseShape("llama", tiny.Dimensions(**sizes, n_ctx=32768), recipe=recipe)


def llama_with_heads(size: int, count: int) -> DenseShape:
    """Return a Llama shape with narrow feed-forward networks, so that attention dominates."""
    return DenseShape(
        "llama",
        tiny.Dimensions(
            n_layer=2, n_embd=size * count, n_ff=512, n_head=count, n_head_kv=count, head_dim=size, n_ctx=8192
        ),
    )


SHAPES = {
    "qwen3": DenseShape(  # Qwen3-0.6B
        "qwen3",
        tiny.Dimensions(n_layer=28, n_embd=1024, n_ff=3072, n_head=16, n_head_kv=8, head_dim=128, n_ctx=8192),
        norms={"attn_q_norm": 128, "attn_k_norm": 128},
    ),
    "gemma2": DenseShape(  # Gemma-2-2B
        "gemma2",
        tiny.Dimensions(n_layer=2, n_embd=2304, n_ff=9216, n_head=8, n_head_kv=4, head_dim=256, n_ctx=8192),
        extra_metadata={
            "attention.sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        norms={"post_attention_norm": 2304, "post_ffw_norm": 2304},
    ),
    "phi3": DenseShape(  # Phi-3-mini
        "phi3",
        tiny.Dimensions(
            n_layer=2, n_embd=3072, n_ff=8192, n_head=32, n_head_kv=32, head_dim=96, n_ctx=8192, tied=False
        ),
        fused={"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_up": ("ffn_gate", "ffn_up")},
    ),
    "llama": DenseShape(  # Llama-3-8B
        "llama",
        tiny.Dimensions(
            n_layer=2, n_embd=4096, n_ff=14336, n_head=32, n_head_kv=8, head_dim=128, n_ctx=8192, tied=False
        ),
    ),
    "qwen2.5-1.5b": llama_shape(n_layer=28, n_embd=1536, n_ff=8960, n_head=12, n_head_kv=2, head_dim=128),
    "qwen2.5-0.5b": llama_shape(n_layer=24, n_embd=896, n_ff=4864, n_head=14, n_head_kv=2, head_dim=64),
    "llama-1b-f16": llama_shape(n_layer=6, n_embd=2048, n_ff=8192, n_head=32, n_head_kv=8, head_dim=64, recipe="F16"),
    "qwen3-4b": llama_shape(n_layer=6, n_embd=2560, n_ff=9728, n_head=32, n_head_kv=8, head_dim=128),
    "heads-80": llama_with_heads(80, 32), "heads-96": llama_with_heads(96, 32),
    "heads-100": llama_with_heads(100, 64), "heads-128": llama_with_heads(128, 50),
}  # fmt: skip


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("--layers", type=int, metavar="N", help="layers of each shape (default: as in the list)")
    arguments = parser.parse_args()
    if unknown := set(arguments.shapes) - SHAPES.keys():
        parser.error(f"no such shape: {', '.join(sorted(unknown))}")
    for name in arguments.shapes or SHAPES:
        shape = SHAPES[name]
        if arguments.layers:
            shape = replace(shape, dimensions=replace(shape.dimensions, n_layer=arguments.layers))
        path = write_file(arguments.folder / f"{name}.gguf", shape.metadata(), shape.shapes(), dict(shape.types()))
        print(f"{path}: {path.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
