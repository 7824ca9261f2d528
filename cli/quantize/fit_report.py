"""The plan and the result of `localinfer fit`, as tables and as JSON."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.escaping import shell_word

if TYPE_CHECKING:
    from localinfer.evaluation.perplexity import Mean
    from localinfer.evaluation.roofline import Roofline
    from localinfer.fit.choice import FitPoint
    from localinfer.fit.speculation import SpeculationSpeed

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class FitPlan:
    """What is known before the long work: the machine, the bytes for the file and for the rest, the sizes and speeds
    of some recipes, and roughly how many seconds each step takes."""

    roofline: "Roofline"
    memory: int
    context: int
    ctx_size: int
    recipes: Mapping[str, tuple[int, float]]  # bytes, and tokens per second
    smallest: int  # bytes of the smallest file
    seconds: Mapping[str, float]

    @property
    def file_limit(self) -> int:
        """The bytes that are left for the file."""
        return self.memory - self.context


@dataclass(frozen=True, slots=True)
class FitResult:
    """A fitted file: what was predicted and what was measured."""

    path: Path
    size: int
    context: int
    predicted: "FitPoint"
    reference: "FitPoint | None"
    divergence: "Mean"
    tokens_per_second: float
    output_type: str
    speculation: Sequence["SpeculationSpeed"]
    command: str


def plan_lines(plan: FitPlan) -> Iterator[str]:
    """Yield the tables of the plan."""
    machine, file = plan.roofline, plan.file_limit
    yield from table("this machine", "<>", [
        ("threads", f"{machine.threads}"),
        ("read bandwidth", f"{machine.bandwidth / 1e9:.1f} GB/s"),
        ("small integers, floats, bfloat16", " ".join(
            f"{rate / 1e9:.0f}" for rate in (machine.dots, machine.fmas, machine.pairs)) + " GMAC/s"),
        ("memory for the model", screen.gib(plan.memory)),
        (f"KV cache and scratch, {plan.ctx_size:,} tokens", screen.gib(plan.context)),
        ("left for the file", screen.gib(max(0, file))),
    ])  # fmt: skip
    rows = [("", "MiB", "tokens/s", "")]
    rows += [
        (name, f"{size / MIB:.1f}", f"{speed:.1f}", "" if size <= file else "too large")
        for name, (size, speed) in plan.recipes.items()
    ]
    yield from table("predicted decode speed of llama.cpp's recipes", "<>><", rows)
    steps = [(name, f"about {screen.clock(seconds)}") for name, seconds in plan.seconds.items()]
    yield from table("steps", "<>", [*steps, ("together", f"about {screen.clock(sum(plan.seconds.values()))}")])


def choice_line(point: "FitPoint") -> str:
    """Return a line about a choice of types."""
    types = ", ".join(f"{count} {kind}" for kind, count in Counter(point.types.values()).most_common())
    return f"chosen: {point.size / MIB:.1f} MiB; output layer {output_type_of(point)}; tensors: {types}"


def output_type_of(point: "FitPoint") -> str:
    """Return the type of the output layer, which may be that of the token embeddings."""
    return point.types.get("output.weight") or point.types.get("token_embd.weight", "unchanged")


def result_lines(result: FitResult) -> Iterator[str]:
    """Yield the tables of the result, and the command that runs the file."""
    predicted, reference = result.predicted, result.reference
    rows = [
        ("", "predicted", "measured", "Q4_K_M, predicted" if reference else ""),
        (
            "KL divergence, nats per token", f"{predicted.divergence:.4f}",
            f"{result.divergence.value:.4f} +/- {result.divergence.error:.4f}",
            f"{reference.divergence:.4f}" if reference else "",
        ),
        (
            "decode, tokens/s", f"{predicted.tokens_per_second:.1f}", f"{result.tokens_per_second:.1f}",
            f"{reference.tokens_per_second:.1f}" if reference else "",
        ),
        (
            "file, MiB", f"{predicted.size / MIB:.1f}", f"{result.size / MIB:.1f}",
            f"{reference.size / MIB:.1f}" if reference else "",
        ),
        ("memory with the context, MiB", f"{(predicted.size + result.context) / MIB:.1f}", "", ""),
    ]  # fmt: skip
    yield from table(f"{screen.one_line(str(result.path))}; output layer: {result.output_type}", "<>>>", rows)
    speeds = [
        (each.spec_type, f"{each.tokens_per_second:.1f} tokens/s", f"{each.ratio:.2f}x") for each in result.speculation
    ]
    yield from table("speculative decoding, on continuations of the text", "<>>", speeds)
    yield ""
    yield result.command


def command_for(path: Path, ctx_size: int, spec_type: str, *, chats: bool, draft_model: str) -> str:
    """Return the command that runs a file with these settings."""
    draft = f" -md {shell_word(draft_model)}" if draft_model and spec_type == "draft-simple" else ""
    start = f"localinfer {'chat' if chats else 'generate'} {shell_word(str(path))} -c {ctx_size}"
    return f"{start} --spec-type {spec_type}{draft}" + ("" if chats else ' -p "..."')


def plan_object(plan: FitPlan) -> dict[str, Any]:
    """Return the plan as a JSON object; sizes are in bytes."""
    machine = plan.roofline
    return {
        "machine": {
            "threads": machine.threads, "bytes_per_second": machine.bandwidth, "int_macs_per_second": machine.dots,
            "float_macs_per_second": machine.fmas, "bfloat16_macs_per_second": machine.pairs,
        },
        "memory": plan.memory, "ctx_size": plan.ctx_size, "context": plan.context, "file_limit": plan.file_limit,
        "recipes": {name: {"size": size, "tokens_per_second": rate} for name, (size, rate) in plan.recipes.items()},
        "estimated_seconds": dict(plan.seconds),
    }  # fmt: skip


def result_object(result: FitResult) -> dict[str, Any]:
    """Return the result as a JSON object."""
    return {
        "path": str(result.path), "output_layer": result.output_type, "types": dict(result.predicted.types),
        "predicted": point_object(result.predicted),
        "reference": point_object(result.reference) if result.reference else None,
        "measured": {
            "size": result.size, "kl_divergence": result.divergence.value,
            "standard_error": result.divergence.error, "tokens_per_second": result.tokens_per_second,
        },
        "speculation": {
            each.spec_type: {"tokens_per_second": each.tokens_per_second, "ratio": each.ratio}
            for each in result.speculation
        },
        "command": result.command,
    }  # fmt: skip


def point_object(point: "FitPoint") -> dict[str, float]:
    return {
        "size": point.size, "kl_divergence": point.divergence, "tokens_per_second": point.tokens_per_second,
    }  # fmt: skip
