"""What modifies the activations of a sequence, besides its tokens: LoRA adapters and hooks."""

from typing import NamedTuple

from localinfer.runtime.hooks import SequenceHooks


class Modifiers(NamedTuple):
    """The scales of the LoRA adapters, and hooks. Cached tokens have been computed with them."""

    scales: tuple[float, ...] = ()
    hooks: SequenceHooks | None = None

    def can_share(self, other: "Modifiers") -> bool:
        """Return whether sequences with these modifiers and others can share cached tokens: not with other scales, and
        never with hooks, which see each token of their sequence and may do with it what they want."""
        return self.scales == other.scales and not self.hooks and not other.hooks


NO_MODIFIERS = Modifiers()
