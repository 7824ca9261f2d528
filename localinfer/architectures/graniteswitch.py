"""Granite Switch (IBM, 2026): granite with LoRA adapters in the file, which control tokens in the text switch on."""

from localinfer.architectures import granite
from localinfer.graph.builder import Builder, X


def build(g: Builder[X]) -> None:
    """What the adapter of a token adds belongs to the products of its matrices: see
    `localinfer.graph.properties.embedded_adapters`."""
    granite.build(g)
