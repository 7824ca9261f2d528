"""The status line after an answer: finish reason, speed, used context and model."""

from typing import TYPE_CHECKING

from rich.cells import cell_len

from cli.generation.generate import format_rate
from cli.terminal.tables import model_label

if TYPE_CHECKING:
    from localinfer import Stats

FINISH_LABELS = {
    "stop": "",
    "length": "cut off by --predict",
    "context": "cut off: context is full",
    "interrupted": "stopped",
}


def used_context(stats: "Stats", n_ctx: int) -> int:
    """Return the tokens in the context. The last token of an answer that fills it is not part of it."""
    return min(stats.prompt_tokens + stats.generated_tokens, n_ctx)


def status_line(name: str, stats: "Stats", n_ctx: int, first_token: float, columns: int) -> str:
    """Return the status line: as many fields as fit into `columns`, the most important first."""
    fields = [
        "closed at the limit of tokens" if stats.closed_at_limit else FINISH_LABELS[stats.finish_reason],
        format_rate(stats.generated_tokens, stats.generate_seconds),
        f"context {used_context(stats, n_ctx):,} of {n_ctx:,} tokens",
        f"first token {first_token:.2f} s",
        model_label(name),
    ]
    line = ""
    for field in filter(None, fields):
        longer = f"{line} · {field}" if line else field
        if cell_len(longer) < columns:
            line = longer
    return line
