"""A log of a builder's operations: the ops of the graph that each one recorded, and the buffers that have its results.

`localinfer.evaluation.verification` runs a graph operation by operation with it. Any builder can be intercepted in the
same way, so the naive forward pass meets the same operations in the same order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from localinfer.graph.builder import (
    AltUpStreams,
    Builder,
    CrossAttentionOperations,
    CrossLayerOperations,
    EmbeddingOperations,
    ExpertOperations,
    HeadOperations,
    OutputOperations,
    RecurrentOperations,
)
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.ops.compute_graph import ComputeGraph

Operation = Callable[..., Any]
Wrap = Callable[[str, Operation], Operation]  # of a path such as "recurrent.recur", and the operation

GROUPS: dict[str, type] = {
    "": Builder, "embeddings": EmbeddingOperations, "per_head": HeadOperations, "output": OutputOperations,
    "recurrent": RecurrentOperations, "experts": ExpertOperations, "cross_layer": CrossLayerOperations,
    "cross_attention": CrossAttentionOperations,
}  # fmt: skip
# What records no ops itself, is a group, or is a draft head, which is no part of the forward pass.
NOT_LOGGED = {
    "blocks", "rope", "by_modality", "recurrent", "experts", "cross_layer", "cross_attention", "buffer", "add_mtp_head",
}  # fmt: skip


def intercept(builder: Builder[Any], wrap: Wrap) -> None:
    """Replace the operations of a builder with what `wrap` makes of them."""
    for group, kind in GROUPS.items():
        replace_methods(getattr(builder, group) if group else builder, kind, f"{group}." if group else "", wrap)


def intercept_streams(streams: AltUpStreams[Any], wrap: Wrap) -> None:
    """Replace the operations of residual streams."""
    replace_methods(streams, AltUpStreams, "altup.", wrap)


def replace_methods(owner: object, kind: type, prefix: str, wrap: Wrap) -> None:
    for name in sorted(set(getattr(kind, "__abstractmethods__", ())) - NOT_LOGGED):
        setattr(owner, name, wrap(f"{prefix}{name}", getattr(owner, name)))


def leaves(value: object, kind: type) -> Iterator[Any]:
    """Yield the activations in arguments or a result: instances of `kind`, also in tuples and lists."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from leaves(each, kind)


@dataclass(eq=False)
class LoggedOperation:
    """An operation: the ops `first_op` to `end_op - 1`, of which some belong to the operations `inner`.

    `results` are the buffers that it returned. `changed` are those of its arguments that ops have written, by their
    number among all buffers in the arguments. `streams` are the residual streams that it works on, if there are many.
    """

    path: str
    first_op: int
    end_op: int = 0
    results: Sequence[Buffer] = ()
    changed: dict[int, Buffer] = field(default_factory=dict)
    streams: Sequence[Buffer] = ()
    inner: "list[LoggedOperation]" = field(default_factory=list)

    def walk(self) -> "Iterator[LoggedOperation]":
        """Yield the inner operations and then this one."""
        for each in self.inner:
            yield from each.walk()
        yield self


class OperationLog:
    """The operations of a builder that was `attach`ed, in order."""

    def __init__(self) -> None:
        self.operations: list[LoggedOperation] = []
        self._open = [self.operations]

    def attach(self, builder: Builder[Buffer], graph: ComputeGraph) -> None:
        """Log the operations of a builder of this graph from now on."""

        def wrap(path: str, method: Operation) -> Operation:
            def logged(*arguments: Any, **keywords: Any) -> Any:
                operation = LoggedOperation(path, len(graph.ops))
                self._open[-1].append(operation)
                self._open.append(operation.inner)
                result = method(*arguments, **keywords)
                self._open.pop()
                streams = result if isinstance(result, AltUpStreams) else getattr(method, "__self__", None)
                if isinstance(streams, AltUpStreams):
                    operation.streams = streams.streams, streams.predicted
                if isinstance(result, AltUpStreams):
                    intercept_streams(result, wrap)
                operation.end_op, operation.results = len(graph.ops), [*leaves(result, Buffer)]
                written = [each for op in graph.ops[operation.first_op :] for each in op.writes]
                given = leaves((arguments, tuple(keywords.values())), Buffer)
                operation.changed = {number: x for number, x in enumerate(given) if x in written}
                return result

            return logged

        intercept(builder, wrap)
