"""Which kind of speculative decoding is fastest on the user's text, if any.

The model continues passages of the text with each kind in turns. The text that it generates is the same with all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.model.loaded_model import load
from localinfer.quantization.prune import MTP_LAYERS_KEY
from localinfer.tokenizer.chunks import Chunks
from quant.jit.loader import Progress

TOKENS = 96  # generated after each passage
MAX_PASSAGES = 3
WORTH_IT = 1.05  # a smaller speed-up is not told from none


@dataclass(frozen=True, slots=True)
class SpeculationSpeed:
    """The tokens per second with a value of --spec-type, and the ratio to those without speculative decoding."""

    spec_type: str
    tokens_per_second: float
    ratio: float


def fastest(speeds: Sequence[SpeculationSpeed]) -> SpeculationSpeed:
    """Return the fastest kind; the first, which is "none", if no other is worth it."""
    best = max(speeds, key=lambda each: each.ratio)
    return best if best.ratio >= WORTH_IT else speeds[0]


def kinds_for(f: GGUF, draft_model: str) -> list[str]:
    """Return the kinds of speculative decoding that a model can use."""
    has_head = f.get(f"{f.architecture}.{MTP_LAYERS_KEY}", int, 0) > 0
    return ["none", "ngram", *["draft-mtp"] * has_head, *["draft-simple"] * bool(draft_model)]


def measure_speculation(
    path: Path, chunks: Chunks, *, threads: int, draft_model: str = "",
    on_step: Callable[[int, int], None] = lambda *_: None, progress: Progress | None = None,
) -> list[SpeculationSpeed]:  # fmt: skip
    """Return the speed of each kind, "none" first; the first half of each chunk is a prompt.

    Raises what `localinfer.load` raises.
    """
    kinds = kinds_for(open_gguf(path), draft_model)
    prompts = [chunk[: len(chunk) // 2].tolist() for chunk in chunks[:MAX_PASSAGES]]
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    n_ctx = chunks.shape[1] // 2 + 2 * TOKENS
    with load(path, progress=progress, ctx_size=n_ctx, threads=threads, spec_draft_model=draft_model) as model:
        for number, prompt in enumerate(prompts):
            for position, kind in enumerate(kinds):
                on_step(number * len(kinds) + position, len(prompts) * len(kinds))
                stats = model.generate(prompt, n_predict=TOKENS, temp=0, ignore_eos=True, spec_type=kind).stats
                rates[kind].append(stats.generated_tokens / stats.generate_seconds)
    without = rates["none"]
    return [
        SpeculationSpeed(
            kind, median(found), median(rate / base for rate, base in zip(found, without, strict=True))
        )
        for kind, found in rates.items()
    ]  # fmt: skip
