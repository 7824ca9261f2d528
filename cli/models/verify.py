"""The command `localinfer verify`: each operation of a model, as this machine computes it, against float64."""

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from cli.arguments.flags import JsonOption, ModelArgument, PromptOption, PromptSource, with_options
from cli.files.media_input import read_media_file
from cli.models.loading import find_or_fetch, missing_model_first
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.errors import LocalInferError, UsageError
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.evaluation.verification.file_verification import Inputs
    from localinfer.evaluation.verification.operation_check import OperationCheck
    from localinfer.evaluation.verification.verification import Verification
    from localinfer.options.keywords import LoadKeywords

OPTIONS = (
    "architecture", "override_kv", "threads", "precision", "ctx_size", "cache_type_k", "cache_type_v", "lora",
    "lora_scaled", "control_vector", "control_vector_scaled", "control_vector_layer_range", "mmproj",
)  # fmt: skip
N_TOKENS, CONTEXT = 32, 256


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """The comparison with a checkpoint."""

    against: Annotated[
        Path | None,
        typer.Option(
            "--against", metavar="CHECKPOINT",
            help="Compare hidden states and logits with this checkpoint directory in transformers instead.",
        ),
    ] = None  # fmt: skip
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="With --against: run the Python files of the checkpoint.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class EncoderMedia:
    """What encoders are verified with."""

    image: Annotated[
        str | None,
        typer.Option("--image", metavar="FILE", help="Image for the encoders. [default: a generated one]"),
    ] = None
    audio: Annotated[
        str | None,
        typer.Option("--audio", metavar="FILE", help="Sound for the encoders. [default: a generated one]"),
    ] = None

    def inputs(self, text: str | None, n_tokens: int) -> "Inputs":
        """Return what the model reads. Raises UsageError for a file that cannot be read, and for one that is not an
        image or a sound."""
        from localinfer.evaluation.verification.file_verification import Inputs
        from localinfer.multimodal.reading import read_image, read_sound

        image, sound = (
            read_media_file(name, option).content if name is not None else None
            for option, name in (("--image", self.image), ("--audio", self.audio))
        )
        try:
            return Inputs(
                text, n_tokens, read_image(image, str(self.image)) if image is not None else None,
                read_sound(sound, str(self.audio)) if sound is not None else None,
            )  # fmt: skip
        except LocalInferError as error:
            raise UsageError(str(error)) from None


@with_options(names=OPTIONS, defaults={"ctx_size": CONTEXT})
def verify_command(
    model: ModelArgument,
    given: Layer,
    prompt: PromptOption = None,
    *,
    source: PromptSource,
    n_tokens: Annotated[int, typer.Option("-n", "--tokens", metavar="N", min=4, help="Tokens to evaluate.")] = N_TOKENS,
    every: Annotated[bool, typer.Option("--all", help="Show every operation, not the worst one of each kind.")] = False,
    checkpoint: CheckpointOptions,
    media: EncoderMedia,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Check that this machine computes a model correctly, operation by operation.

    The kernels evaluate the first tokens of a text. Each operation (a norm, a product with a matrix, attention, ...) is
    then computed again in float64 from the same inputs, without kernels. The table shows the difference beside what
    rounding allows. The exit code is 1 if an operation is wrong; the first one is named.

    With --mmproj, the encoders of the model's projector are checked, too. MODEL may also be a projector itself, or a
    speech recognition model, whose encoder is checked.

    \b
    Examples:
      localinfer verify smollm2
      localinfer verify model.gguf --precision high --all
      localinfer verify model.gguf --cache-type-k q8_0 --cache-type-v q8_0 --lora adapter.gguf
      localinfer verify vision.gguf --mmproj mmproj-vision.gguf --image cat.jpg
      localinfer verify mmproj-vision.gguf
      localinfer verify model-f32.gguf --against checkpoint/
    """
    with missing_model_first(model):
        text = source.read_optional_prompt(prompt or ())
    if not (text or prompt or source.files):  # an empty stdin, as scripts have it
        text = None
    status, start = screen.Status(), time.monotonic()
    path = find_or_fetch(model, status)
    if checkpoint.against is not None:
        if given.get("mmproj") or media != EncoderMedia():
            raise UsageError("--against: compares language models only, without --mmproj, --image and --audio")
        checks = compare_with_checkpoint(path, given, checkpoint, text, n_tokens, status)
        show(model, checks, {"against": str(checkpoint.against)}, status, every=True, as_json=as_json)
        require_agreement(model, checks)
    else:
        if checkpoint.trust_remote_code:
            raise UsageError("--trust-remote-code: needs --against")
        found = verify(path, given, media.inputs(text, n_tokens), status)
        checks, facts = facts_of([each for _, each in found])
        show(model, checks, facts, status, every=every, as_json=as_json)
        for file, each in found:
            each.require_correct(screen.one_line(model if file == path else str(file)))
    if not as_json:
        screen.note(f"{len(checks)} checks, all within what is allowed ({screen.clock(time.monotonic() - start)})")


def facts_of(found: "Sequence[Verification]") -> "tuple[Sequence[OperationCheck], dict[str, object]]":
    """Return all checks, and what else the JSON object has."""
    from localinfer.evaluation.verification.verification import Verification

    joined = Verification.joined(found)
    facts = {name: [*getattr(joined, name)] for name in ("batches", "weights_not_finite", "inputs")}
    return joined.checks, {**facts, "precision": joined.precision}


def verify(
    path: Path, given: Layer, inputs: "Inputs", status: screen.Status
) -> "list[tuple[Path, Verification]]":
    """Verify a model and its projector, and show the progress."""
    from cli.models import sigbus_handler
    from localinfer.file_operations import verify_files

    if projector := given.get("mmproj"):
        find_or_fetch(str(projector), status)

    start = 0.0

    def on_operation(done: int, total: int) -> None:
        nonlocal start
        start = (0.0 if done == total else start) or time.monotonic()  # another file may follow
        left = f", {screen.time_left(done, total, time.monotonic() - start)}" if 100 * done > total else ""
        status.show(f"checking operations: {100 * done / max(total, 1):.0f} %{left}")

    sigbus_handler.install(screen.one_line(str(path)))
    return [*verify_files(path, cast("LoadKeywords", given), inputs, status, on_operation)]


def compare_with_checkpoint(
    path: Path, given: Layer, options: CheckpointOptions, text: str | None, n_tokens: int, status: screen.Status
) -> "Sequence[OperationCheck]":
    """Compare a model with its checkpoint in transformers."""
    import localinfer
    from localinfer.evaluation.verification import checkpoint as against
    from localinfer.evaluation.verification.verification import first_tokens
    from localinfer.gguf.reader import open_gguf
    from localinfer.runtime.encoder_tokens import as_sequence

    checkpoint = options.against
    if checkpoint is None or not checkpoint.is_dir():
        raise UsageError(f"--against: {checkpoint} is not a directory")
    against.require_packages()
    f = open_gguf(path)
    against.allowed_difference(f)
    tokens = first_tokens(f, text, n_tokens)
    keywords = cast("LoadKeywords", {"precision": "high", "cache_type_k": "f32", "cache_type_v": "f32", **given})
    with localinfer.load(path, progress=status, **keywords) as model:
        names = [name for name in model.points() if name == "logits" or name.endswith(".resid_post")]
        tokens = as_sequence(tokens, model.engine.compiled_graph.model_graph)
        with model.capture(*names) as trace:
            model.logits(tokens)
    with status.busy("running transformers"):
        checks = against.compare_with_checkpoint(
            f, checkpoint, tokens, trace, trust_remote_code=options.trust_remote_code
        )
        return [*checks]


def require_agreement(model: str, checks: "Sequence[OperationCheck]") -> None:
    """Raise LocalInferError with the first layer that differs from transformers, if there is one."""
    if wrong := next((check for check in checks if not check.is_ok), None):
        what = f"differs from transformers by {wrong.error:.1e} of the largest value; {wrong.allowed:.0e} is allowed"
        raise LocalInferError(f"{screen.one_line(model)}: {wrong.name}: {what}")


# ---- output ------------------------------------------------------------------------------------------------


def show(
    model: str, checks: "Sequence[OperationCheck]", facts: dict[str, object], status: screen.Status, *, every: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Write the checks to stdout, as a table or a JSON object."""
    status.erase()
    if as_json:
        screen.write(json.dumps(as_object(model, checks, facts), indent=1) + "\n")
    else:
        screen.write("\n".join([*as_text(checks, every=every)][2:]) + "\n")


def as_text(checks: "Sequence[OperationCheck]", *, every: bool) -> Iterator[str]:
    """Yield a table of all checks, or of the worst one of each operation and tensor type."""
    groups: dict[tuple[str, str], list[OperationCheck]] = {}
    for number, check in enumerate(checks):
        groups.setdefault((check.operation, check.type) if not every else (str(number), ""), []).append(check)
    rows = [("operation", "type", "checks", "worst", "shape", "error", "allowed", "")]
    for group in groups.values():
        worst = max(group, key=lambda check: check.ratio)
        wrong = sum(not check.is_ok for check in group)
        verdict = "ok" if not wrong else "wrong" if len(group) == 1 else f"{wrong} wrong"
        shape = " x ".join(map(str, worst.shape))
        figures = f"{worst.error:.1e}", f"{worst.allowed:.1e}", verdict
        rows.append((worst.operation, worst.type, str(len(group)), screen.one_line(worst.name), shape, *figures))
    yield from table("", "<<><<>><", rows)


def finite(error: float) -> float | None:
    """Return an error as JSON has it: None for a result that is NaN or infinite."""
    return error if math.isfinite(error) else None


def as_object(model: str, checks: "Sequence[OperationCheck]", facts: dict[str, object]) -> dict[str, Any]:
    """Return the checks as a JSON object."""
    listed = [{**asdict(check), "error": finite(check.error), "ok": check.is_ok} for check in checks]
    return {"model": model, "ok": all(check.is_ok for check in checks), **facts, "checks": listed}
