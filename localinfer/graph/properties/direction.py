"""The direction of attention: decoders attend to earlier tokens only, encoders and diffusion language models to all."""

from localinfer.graph.properties.hyperparameters import Hyperparameters

ENCODERS_WITHOUT_KEY = ("gemma-embedding", "llama-embed", "t5encoder")  # whose files lack attention.causal
DIFFUSION = ("dream", "llada", "llada-moe", "rnd1")


def is_causal(keys: Hyperparameters) -> bool:
    """Return whether a token attends only to those before it. Diffusion language models never do, as in llama.cpp."""
    return keys.flag("attention.causal", keys.architecture not in ENCODERS_WITHOUT_KEY) and not is_diffusion(keys)


def is_diffusion(keys: Hyperparameters) -> bool:
    """Return whether the model predicts masked tokens from those on both sides (a diffusion language model)."""
    return keys.architecture in DIFFUSION
