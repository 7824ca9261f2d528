"""Nemotron 3 (NVIDIA, 2025; Nano, Super): as nemotron_h, with many small experts and a biased router."""

from localinfer.architectures import nemotron_h
from localinfer.graph.builder import Builder, X
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with a sigmoid router and normalized expert weights."""
    g.hparams.accept("moe_latent_size")  # the tensor shapes have it, too
    nemotron_h.build(g, read_router(g, "sigmoid", normed=True))
