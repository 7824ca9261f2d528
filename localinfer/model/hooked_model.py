"""Hooks on a model's activations: read them with `capture`, change them with `patch`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from localinfer.errors import UsageError
from localinfer.model.base import ModelBase

if TYPE_CHECKING:  # most programs use no hooks
    import numpy as np
    from numpy.typing import NDArray

    from localinfer.model.points import PointDescription
    from localinfer.runtime.activations.hooks import HookGroup, RowInfo
    from localinfer.runtime.activations.trace import Trace

    Patch = Callable[[NDArray[np.float32], RowInfo], object]


class HookedModel(ModelBase):
    """Read and change activations while the model runs.

    Hooks belong to the model or handle whose method is called. While any are set, cached prefixes are not reused,
    nothing is read from or written to the prefix store, and nothing is drafted. When they are set and removed, the
    current run ends and its KV cache is discarded.
    """

    def points(self) -> "Mapping[str, PointDescription]":
        """Return the points at which activations can be read and changed, by name, each with its `shape` for one token
        and a `description`. Those of the encoders of images and sounds come first."""
        return self._points_matching(["*"])

    def _points_matching(self, patterns: "Iterable[str]") -> "Mapping[str, PointDescription]":
        """Return the points that patterns may match. The projector is opened if these may be points of encoders."""
        from localinfer.graph.points import may_match_encoders
        from localinfer.model.points import describe, describe_points

        of_encoders: Mapping[str, PointDescription] = {}
        if may_match_encoders(patterns) and self.media_kinds:
            of_encoders = describe(self.projector.points())
        return {**of_encoders, **describe_points(self.engine.compiled_graph.point_graph)}

    @contextmanager
    def capture(self, *patterns: str) -> "Iterator[Trace]":
        """Record activations of the tokens that are evaluated in the with block. Yield the trace, a mapping from the
        names of points to arrays, float32 (tokens, n), of the last run.

            with model.capture("blk.*.resid_post", "blk.7.attn_out") as trace:
                model.generate("The capital of France is")

        The wildcards `*`, `?` and `[...]` match several points. All tokens of a prompt are evaluated again. Raises
        UsageError for a name that the model does not have.
        """
        from localinfer.graph.points import matching
        from localinfer.runtime.activations.trace import Trace

        names = matching(patterns, self._points_matching(patterns))
        trace = Trace(names, self.engine.compiled_graph.model_graph.attention.layers)
        with self._with_hooks(trace.group()):
            yield trace

    @contextmanager
    def patch(self, patches: "Mapping[str, Patch]") -> Iterator[None]:
        """Change activations in the with block. `patches` are functions by the names of points, with wildcards as in
        `capture`.

            with model.patch({"blk.7.resid_post": lambda values, info: values + direction}):
                model.generate("I think that")

        A function receives the activations of some tokens, float32 (tokens, n), a copy, and a `RowInfo`: the `name` of
        the point, the `tokens` (ids) and their `positions`. It returns what replaces the activations, an array of the
        same shape. Its exceptions end the run. It must not run the model, and a thread of the scheduler may call it.
        Where several patches change a point, they are called one after another.

        Raises UsageError for a name that the model does not have, or whose activations cannot be changed.
        """
        from localinfer.graph.points import READ_ONLY, kind, matching
        from localinfer.runtime.activations.hooks import HookGroup

        names, hooks = self._points_matching(patches), dict[str, "Patch"]()
        for pattern, function in patches.items():
            if not callable(function):
                raise UsageError(f"{pattern}: the patch is no function, but {type(function).__name__}")
            for name in matching([pattern], names):
                if kind(name) in READ_ONLY:
                    raise UsageError(f"{name}: cannot be changed")
                hooks[name] = changing(function, hooks.get(name))
        with self._with_hooks(HookGroup(hooks)):
            yield

    @contextmanager
    def _with_hooks(self, group: "HookGroup") -> Iterator[None]:
        """Set further hooks in the with block."""
        from localinfer.runtime.activations.hooks import SequenceHooks

        before = self.engine.sequence.modifiers.hooks
        self._session.end()
        self.engine.set_hooks(SequenceHooks([*(before.groups if before else ()), group]), self._session.progress)
        try:
            yield
        finally:
            self._session.end()
            self.engine.set_hooks(before)


def changing(patch: "Patch", before: "Patch | None" = None) -> "Patch":
    """Return a hook that calls `before`, if given, and then `patch`. It raises UsageError if that returns nothing."""
    from localinfer.runtime.activations.hooks import checked_values

    def hook(values: "NDArray[np.float32]", info: "RowInfo") -> object:
        if before is not None:
            values = checked_values(info.name, before(values, info), values.shape)
        result = patch(values, info)
        if result is None:
            raise UsageError(f"{info.name}: a patch returned None; it must return the new values")
        return result

    return hook
