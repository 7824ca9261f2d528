"""Texts that are longer than the context."""

import warnings

from localinfer.errors import ContextOverflowError


def note_length(number: int, count: int, n_ctx: int, *, truncate: bool, of: str = "tokens") -> None:
    """Raise ContextOverflowError for a text that is too large, the `number`-th with `count` tokens, or warn that its
    end is dropped if `truncate` is set."""
    message = f"text {number}: is too large: {count} {of}, more than the context length {n_ctx}"
    if not truncate:
        hint = "truncate (--truncate) drops its end, ctx_size (--ctx-size) sets a larger context"
        raise ContextOverflowError(f"{message}; {hint}")
    warnings.warn(f"{message}; its end is dropped", stacklevel=5)
