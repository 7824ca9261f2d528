"""The options of `localinfer quantize`: names, types and help texts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from localinfer.quantization.recipes import COPY, RECIPES

TYPES = f"{', '.join(RECIPES)}, or {COPY} (keep all types)"
EFFORTS = ("fast", "normal", "max")  # max is normal plus error feedback

SourceArgument = Annotated[
    str, typer.Argument(metavar="SOURCE", help="A GGUF file, a model name, or a checkpoint directory.")
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[OUT] TYPE [THREADS]", help=f"Output file, and its type: {TYPES}."),
]


@dataclass(frozen=True, kw_only=True)
class TypeOptions:
    """The types of the tensors."""

    target_size: Annotated[
        str | None,
        typer.Option(
            "--target-size",
            metavar="SIZE",
            help="Instead of TYPE: choose types for a file size, such as 700MB or 650MiB.",
        ),
    ] = None
    target_bpw: Annotated[
        str | None,
        typer.Option(
            "--target-bpw", metavar="BITS", help="Instead of TYPE: choose types for this average of bits per weight."
        ),
    ] = None
    lab: Annotated[
        Path | None,
        typer.Option("--lab", metavar="FILE", help="With a target: choose by the divergences of `localinfer lab`."),
    ] = None
    recipe: Annotated[
        Path | None,
        typer.Option("--recipe", metavar="FILE", help="Instead of TYPE: a JSON file with the types of tensors."),
    ] = None
    pure: Annotated[bool, typer.Option("--pure", help="Use one type for all matrices.")] = False
    leave_output_tensor: Annotated[
        bool, typer.Option("--leave-output-tensor", help="Do not quantize output.weight.")
    ] = False
    output_tensor_type: Annotated[
        str | None, typer.Option("--output-tensor-type", metavar="TYPE", help="Type of output.weight.")
    ] = None
    token_embedding_type: Annotated[
        str | None, typer.Option("--token-embedding-type", metavar="TYPE", help="Type of the token embeddings.")
    ] = None
    tensor_type: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor-type", metavar="REGEX=TYPE", help="Type of the tensors whose name matches; the first match wins."
        ),
    ] = None
    tensor_type_file: Annotated[
        Path | None, typer.Option("--tensor-type-file", metavar="FILE", help="File with more REGEX=TYPE patterns.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ImportanceOptions:
    """The importance matrix or calibration data, and the search effort."""

    imatrix: Annotated[
        Path | None, typer.Option("--imatrix", metavar="FILE", help="Importance matrix; see `localinfer imatrix`.")
    ] = None
    include_weights: Annotated[
        list[str] | None,
        typer.Option(
            "--include-weights",
            metavar="TEXT",
            help="Use the importance matrix only for tensors whose name contains TEXT.",
        ),
    ] = None
    exclude_weights: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude-weights",
            metavar="TEXT",
            help="Do not use the importance matrix for tensors whose name contains TEXT.",
        ),
    ] = None
    calibrate: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            metavar="FILE",
            help="Quantize layer by layer with error feedback on this text (--effort max).",
        ),
    ] = None
    calibrate_chunks: Annotated[
        int | None,
        typer.Option(
            "--calibrate-chunks", metavar="N", min=2, help="Maximum number of chunks of 512 tokens [default: 64]."
        ),
    ] = None
    scale_pairs: Annotated[
        bool,
        typer.Option(
            "--scale-pairs",
            help="With --imatrix or --calibrate: move factors between weights where this reduces the error (AWQ). "
            "LoRA adapters do not fit the result.",
        ),
    ] = False
    effort: Annotated[
        str | None,
        typer.Option(
            "--effort",
            metavar="|".join(EFFORTS),
            help="Search effort; max adds error feedback from an imatrix with covariances [default: normal].",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What is read from the source."""

    target_model_dir: Annotated[
        str | None,
        typer.Option("--target-model-dir", metavar="DIR", help="Checkpoint of the target model of a draft head."),
    ] = None
    conversion: Annotated[
        str | None,
        typer.Option(
            "--conversion", metavar="FILE",
            help="Python file that describes checkpoints of an architecture of your own; see new-architecture.",
        ),
    ] = None  # fmt: skip
    architecture: Annotated[
        str | None,
        typer.Option("--architecture", metavar="FILE", help="Python file of the compute graph of that architecture."),
    ] = None
    mmproj: Annotated[
        bool, typer.Option("--mmproj", help="Convert a checkpoint's encoder of images or sounds, not its text model.")
    ] = False
    remote: Annotated[
        bool, typer.Option("--remote", help="SOURCE is OWNER/REPO of a checkpoint on the Hugging Face Hub.")
    ] = False
    lora: Annotated[
        list[str] | None,
        typer.Option("--lora", metavar="FILE,...", help="Merge LoRA adapters into the weights; may be repeated."),
    ] = None
    lora_scaled: Annotated[
        list[str] | None,
        typer.Option("--lora-scaled", metavar="FILE:SCALE,...", help="The same, each with a scale."),
    ] = None
    override_kv: Annotated[
        list[str] | None,
        typer.Option(
            "--override-kv", metavar="KEY=TYPE:VALUE", help="Override metadata; TYPE is int, float, bool or str."
        ),
    ] = None
    prune_layers: Annotated[
        str | None,
        typer.Option(
            "--prune-layers", metavar="N,...|auto:COUNT",
            help="Remove these layers (0-based), or as many as change the predictions on --prune-text least.",
        ),
    ] = None  # fmt: skip
    prune_text: Annotated[
        str | None, typer.Option("--prune-text", metavar="FILE", help="Text for --prune-layers auto:COUNT.")
    ] = None
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Allow quantizing tensors that are already quantized.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The output files."""

    keep_split: Annotated[
        bool, typer.Option("--keep-split", help="Write as many files as the source has: OUT-00001-of-00003.gguf.")
    ] = False
    report: Annotated[
        str | None,
        typer.Option(
            "--report", metavar="FILE", help="Write the quantization error of each tensor to an .html or .json file."
        ),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show types and sizes without writing a file.")] = False
    force: Annotated[bool, typer.Option("--force", help="Overwrite OUT if it exists.")] = False
