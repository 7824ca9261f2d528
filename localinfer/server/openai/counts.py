"""How much was read and written, in OpenAI's words and in llama.cpp's."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localinfer.generation.pieces import Stats


def usage(all_stats: "Sequence[Stats]") -> dict[str, Any]:
    """Of several answers to the same prompt; the prompt counts once."""
    read = max((stats.prompt_tokens for stats in all_stats), default=0)
    written = sum(stats.generated_tokens for stats in all_stats)
    cached = min((stats.reused_tokens for stats in all_stats), default=0)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def timings(stats: "Stats") -> dict[str, Any]:
    """Of one answer, as llama.cpp's server tells them; times in milliseconds."""
    computed = stats.prompt_tokens - stats.reused_tokens
    drafts = {"draft_n": stats.drafted_tokens, "draft_n_accepted": stats.accepted_tokens}
    return {
        "cache_n": stats.reused_tokens,
        "prompt_n": computed,
        "prompt_ms": 1000 * stats.prompt_seconds,
        "prompt_per_token_ms": 1000 * stats.prompt_seconds / max(computed, 1),
        "prompt_per_second": computed / max(stats.prompt_seconds, 1e-9),
        "predicted_n": stats.generated_tokens,
        "predicted_ms": 1000 * stats.generate_seconds,
        "predicted_per_token_ms": 1000 * stats.generate_seconds / max(stats.generated_tokens, 1),
        "predicted_per_second": stats.generated_tokens / max(stats.generate_seconds, 1e-9),
        **(drafts if stats.drafted_tokens else {}),
    }
