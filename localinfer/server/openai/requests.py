"""What questions of all kinds have in common."""

from dataclasses import dataclass

from localinfer.options import Layer
from localinfer.server.fields import Fields, count, get
from localinfer.server.problems import bad

MOST_CHOICES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    wanted: str | None  # the model
    options: Layer
    n: int
    stream: bool
    include_usage: bool

    def options_for(self, choice: int) -> Layer:
        """Each choice has a seed of its own, so that they differ."""
        seed = self.options.get("seed", -1)
        if choice == 0 or not isinstance(seed, int) or seed < 0:
            return self.options
        return self.options | {"seed": (seed + choice) % 2**64}


def common(fields: Fields, options: Layer) -> Common:
    n, best_of = count(fields, "n", 1, 1, MOST_CHOICES), get(fields, "best_of", int, 1)
    if best_of > n:
        raise bad("best_of", "answers are not compared here; n gives several")
    streaming = get(fields, "stream_options", dict, {})
    return Common(
        wanted=get(fields, "model", str, "") or None,
        options=options,
        n=n,
        stream=get(fields, "stream", bool, False),
        include_usage=bool(streaming.get("include_usage")),
    )
