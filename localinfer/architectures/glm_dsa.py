"""GLM-5 (Z.ai, 2026): as deepseek32, but the indexer rotates adjacent values, and from GLM-5.2 on most layers attend to
the positions that an earlier layer chose."""

from localinfer.architectures.deepseek32 import sparse_decoder
from localinfer.graph.builder import Builder, X
from localinfer.graph.indexer import read_indexer_layers

LONG_CONTEXT, PERIOD = 1 << 20, 4  # GLM-5.2 has this context; after two layers, one in four has an indexer


def build(g: Builder[X]) -> None:
    """The file specifies which layers have an indexer; older ones do not, and the length of the context decides."""
    is_shared = g.hparams.count("context_length") >= LONG_CONTEXT

    def usual(layer: int) -> bool:
        return not is_shared or layer < 2 or layer % PERIOD == 2

    sparse_decoder(g, "interleaved", read_indexer_layers(g, usual))
