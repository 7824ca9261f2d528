"""Where the closing of an answer is looked for: near its limit of tokens, and nowhere else."""

FAR = 1024  # tokens before the limit; no closing is looked for before them
NEAR = 256  # tokens before the limit; from there on, one is looked for at each of them
LONG_CLOSINGS = 4  # the same, as a multiple of the length of the last closing


class LimitWatch:
    """Says before which tokens a closing is looked for, by how many may follow them.

    Far from the limit that is at every halving of their number, and between these nothing is spent. An answer cannot be
    closed any more if it begins something between two of them that needs more than half of what is left.
    """

    def __init__(self) -> None:
        self._next = FAR

    def is_near(self, n_left: int) -> bool:
        """Return whether a closing is looked for before a token that `n_left` may follow."""
        return n_left <= self._next

    def update(self, n_left: int, length: int | None) -> None:
        """Record the length of the closing after this token; None if none was found, which may have taken long."""
        near = 0 if length is None else max(NEAR, LONG_CLOSINGS * length)
        self._next = n_left if n_left <= near else max(near, n_left // 2)
        if length is not None and length > n_left:  # the answer cannot be closed until it has become shorter
            self._next = n_left - (length - n_left) // 4 - 1
