"""Sliding windows that published models were trained with, and that their files do not state.

llama.cpp's converter drops the window of architectures that it computes without one. The other hyperparameters of a
file tell which model it is. Published models of qwen2, qwen2moe, qwen3, qwen3moe, smollm3, dots1, mistral3 and Mixtral
have no window, although their architectures may. A window of 0 states that there is none.
"""

from collections.abc import Mapping
from typing import NamedTuple

from localinfer.graph.properties.hyperparameters import Hyperparameters

KEY = "attention.sliding_window"


class PublishedWindow(NamedTuple):
    """The window of the models of an architecture whose hyperparameters are these.

    A value of None means that the key is missing, several values that it is one of them. `name` is a part of
    general.name in lower case.
    """

    model: str
    architecture: str
    window: int
    hyperparameters: Mapping[str, tuple[float | str | None, ...]] = {}
    name: str = ""


MISTRAL_7B = {
    "block_count": (32,), "embedding_length": (4096,), "feed_forward_length": (14_336,), "attention.head_count": (32,),
    "attention.head_count_kv": (8,), "expert_count": (None, 0), "rope.scaling.type": (None, "none"),
}  # fmt: skip
PUBLISHED = (
    PublishedWindow("StarCoder2", "starcoder2", 4096),
    # Also models trained from it, such as Zephyr and OpenChat 3.5. Later versions have another RoPE base.
    PublishedWindow("Mistral 7B v0.1", "llama", 4096, {**MISTRAL_7B, "rope.freq_base": (None, 10_000.0)}),
    PublishedWindow("MistralLite", "llama", 16_384, {**MISTRAL_7B, "rope.freq_base": (1e6,)}, "mistrallite"),
    # Files made before August 2024; later ones state the window.
    PublishedWindow("Phi-3 Mini and Medium 4K", "phi3", 2047, {"block_count": (32, 40), "context_length": (4096,)}),
)

ARCHITECTURES = frozenset(each.architecture for each in PUBLISHED)


def find_published_window(hparams: Hyperparameters) -> PublishedWindow | None:
    """Return the window that the model was trained with, if the file does not state whether it has one."""
    if hparams.has(KEY):
        return None
    return next((each for each in PUBLISHED if matches(each, hparams)), None)


def matches(published: PublishedWindow, hparams: Hyperparameters) -> bool:
    """Return whether a file has the model of a published window."""
    metadata, prefix = hparams.f.metadata, hparams.architecture
    if published.architecture != prefix or published.name not in str(metadata.get("general.name", "")).lower():
        return False
    given = {key: metadata.get(f"{prefix}.{key}") for key in published.hyperparameters}
    return all(
        isinstance(value, int | float | str | None) and value in published.hyperparameters[key]
        for key, value in given.items()
    )


def missing_window_warnings(hparams: Hyperparameters, n_ctx: int) -> list[str]:
    """Return a warning if the context is longer than a window that the file does not state."""
    published = find_published_window(hparams)
    if published is None or n_ctx <= published.window:
        return []
    key = f"{hparams.architecture}.{KEY}"
    what = f"is missing; {published.model} was trained with a sliding window of {published.window} tokens"
    mend = f"--override-kv {key}=int:{published.window} sets it for a run, `localinfer edit` in the file"
    return [str(hparams.f.error(key, f"{what}, and answers degrade beyond it; {mend}"))]
