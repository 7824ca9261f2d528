"""Token counts in OpenAI's `usage` format, and llama.cpp's `timings`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localinfer.generation.pieces import Stats
    from localinfer.server.requests.prefill_reports import PrefillReport


def usage(all_stats: "Sequence[Stats]") -> dict[str, Any]:
    """Return the usage of several choices for the same prompt. The prompt's tokens count once."""
    prompt_tokens = max((stats.prompt_tokens for stats in all_stats), default=0)
    generated_tokens = sum(stats.generated_tokens for stats in all_stats)
    cached = min((stats.reused_tokens for stats in all_stats), default=0)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated_tokens,
        "total_tokens": prompt_tokens + generated_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def timings(stats: "Stats") -> dict[str, Any]:
    """Return llama.cpp's timings of one generation, in milliseconds. The first token needs no decode step."""
    n_steps = max(stats.generated_tokens - 1, 0)
    n_computed = stats.prompt_tokens - stats.reused_tokens
    drafts = {"draft_n": stats.drafted_tokens, "draft_n_accepted": stats.accepted_tokens}
    return {
        "cache_n": stats.reused_tokens,
        "prompt_n": n_computed,
        "prompt_ms": 1000 * stats.prompt_seconds,
        "prompt_per_token_ms": 1000 * stats.prompt_seconds / max(n_computed, 1),
        "prompt_per_second": n_computed / stats.prompt_seconds if stats.prompt_seconds else 0.0,
        "predicted_n": stats.generated_tokens,
        "predicted_ms": 1000 * stats.generate_seconds,
        "predicted_per_token_ms": 1000 * stats.generate_seconds / n_steps if n_steps else 0.0,
        "predicted_per_second": n_steps / max(stats.generate_seconds, 1e-9),
        **(drafts if stats.drafted_tokens else {}),
    }


def prefill_timings(report: "PrefillReport") -> dict[str, Any]:
    """Return the timings of a prompt of which a part is evaluated."""
    from localinfer.generation.pieces import Stats

    return timings(Stats(
        prompt_tokens=report.processed, reused_tokens=report.cached, prompt_seconds=report.seconds))  # fmt: skip
