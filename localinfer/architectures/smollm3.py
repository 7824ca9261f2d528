"""SmolLM3 (Hugging Face, 2025): as llama, but nothing tells distances in the last of every four layers."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder

PATTERN = 4


def record(r: Recorder) -> None:
    """Layers without a rotary embedding (NoPE; Yang et al., 2025)."""
    turning, plain = Sight(r.rope("neighbours")), Sight(None)
    decoder(r, [plain if block % PATTERN == PATTERN - 1 else turning for block in range(r.block_count)])
