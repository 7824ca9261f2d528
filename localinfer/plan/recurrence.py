"""The shape of recurrent heads: how many there are, and how large the matrix is that each keeps."""

from dataclasses import dataclass

from localinfer.ops.layout import state_strip
from localinfer.plan.keys import Keys

SHAPE_OF_STATES = ("ssm.conv_kernel", "ssm.group_count", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank")


@dataclass(frozen=True)
class Recurrence:
    """`heads` of values share `groups` of keys and queries, `share` neighbours each, before the next ones take their
    turn; a head's state is key x value numbers.

    It learns by the rule "delta" or "add": see `localinfer.ops.recur`. Convolutions before it are so many tokens wide.
    """

    rule: str
    heads: int
    groups: int
    share: int
    key: int
    value: int
    width: int

    @property
    def n_keys(self) -> int:
        """The values of all keys of a token, and of all its queries."""
        return self.groups * self.key

    @property
    def n_values(self) -> int:
        return self.heads * self.value


def read_recurrence(keys: Keys, rule: str, *, neighbours: bool) -> Recurrence:
    """As the file says; what kernels take at a time must divide it. Heads that share a key are neighbours by the rule
    "add"; by "delta" they take turns with those of other keys, unless they are `neighbours`."""
    heads, groups = keys.count("ssm.time_step_rank", most=1 << 12), keys.count("ssm.group_count", most=1 << 12)
    key, inner = keys.count("ssm.state_size", most=1 << 12), keys.count("ssm.inner_size", most=1 << 20)
    if heads % groups:
        raise keys.error("ssm.group_count", f"is {groups}; it must divide {heads}, the number of heads")
    if inner % (heads * state_strip(inner // heads)):
        raise keys.refuse("ssm.inner_size", f"{inner} for {heads} heads")
    if key % 16:
        raise keys.refuse("ssm.state_size", key)
    share = heads // groups if neighbours or rule == "add" else 1
    return Recurrence(rule, heads, groups, share, key, inner // heads, keys.count("ssm.conv_kernel", most=64))
