"""The command `localinfer merge`: LoRA adapters written into the weights of a model."""

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments.flags import ModelArgument, typer_option, with_options
from cli.files.output_files import writable_path
from cli.models.loading import find_or_fetch
from cli.terminal import screen
from localinfer.errors import UsageError
from localinfer.options import FLAGS, parse_scaled_file


@with_options()
def merge_command(
    model: ModelArgument,
    *,
    lora: Annotated[list[str] | None, typer_option("lora")] = None,
    lora_scaled: Annotated[list[str] | None, typer_option("lora_scaled")] = None,
    out: Annotated[str, typer.Option("-o", "--out", "--output", metavar="FILE", help="The file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write LoRA adapters into the weights of a model.

    MODEL is a GGUF file, a model name or a checkpoint directory of Hugging Face. Every tensor keeps its type. Matrices
    of F32, F16 and BF16 are rounded once; quantized ones are computed in F32 and quantized again, which adds an error
    of its own. `localinfer quantize --lora` writes other types.

    \b
    Examples:
      localinfer merge model-f16.gguf --lora adapter.gguf -o merged.gguf
      localinfer merge model-f16.gguf --lora-scaled peft-adapter/:0.5 -o half.gguf
    """
    plain = [(text, 1.0) for texts in lora or () for text in FLAGS["lora"].parse(texts)]  # type: ignore[union-attr]
    scaled = [parse_scaled(text) for texts in lora_scaled or () for text in FLAGS["lora_scaled"].parse(texts)]  # type: ignore[union-attr]
    if not plain and not scaled:
        raise UsageError("--lora: missing; --lora FILE names an adapter")

    from localinfer import file_operations

    adapters, status = [*plain, *scaled], screen.Status()
    new = writable_path("--output", out, inputs=[name for name, _ in adapters], is_model=True)
    path = Path(model) if Path(model).is_dir() else find_or_fetch(model, status)
    with status.busy("merging"):
        merged = file_operations.merge_lora(path, new, adapters, force=force, progress=status)
    status.erase()
    for type, count in sorted(merged.requantized.items()):
        screen.warn(f"{count} matrices of {type} are quantized again, which adds an error of its own")
    size = screen.mib(merged.path.stat().st_size)
    noun = "adapter" if len(adapters) == 1 else "adapters"
    screen.note(f"{screen.one_line(out)}: {len(adapters)} {noun} merged, {size}")


def parse_scaled(text: str) -> tuple[str, float]:
    """Return the file and the scale. Raises UsageError for another syntax."""
    try:
        name, scale = parse_scaled_file(text)
    except ValueError as problem:
        raise UsageError(f"--lora-scaled: {problem}") from None
    return str(name), scale
