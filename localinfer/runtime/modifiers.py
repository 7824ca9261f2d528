"""What modifies the activations of a sequence, besides its tokens: LoRA adapters and hooks."""

from typing import NamedTuple

from localinfer.runtime.activations.hooks import SequenceHooks

NO_POINTS = frozenset[str]()


class Modifiers(NamedTuple):
    """The scales of the LoRA adapters, and hooks. Cached tokens have been computed with them."""

    scales: tuple[float, ...] = ()
    hooks: SequenceHooks | None = None

    @property
    def points(self) -> frozenset[str]:
        """The points at which there are hooks."""
        return self.hooks.points if self.hooks else NO_POINTS

    def can_share(self, other: "Modifiers") -> bool:
        """Return whether sequences with these modifiers and others can share cached tokens: not with other scales, and
        never with hooks, which see each token of their sequence and may do with it what they want."""
        return self.scales == other.scales and not self.hooks and not other.hooks


NO_MODIFIERS = Modifiers()
