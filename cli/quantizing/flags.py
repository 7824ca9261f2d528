"""The options of `localinfer quantize`: names, what they take, and what is said of them in the help."""

from pathlib import Path
from typing import Annotated

import typer

from localinfer.quantizing.recipes import COPY, RECIPES

TYPES = f"{', '.join(RECIPES)}, or {COPY}, which changes none"
EFFORTS = ("fast", "normal", "max")  # the last searches as the second does, and passes errors on

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A GGUF file, a name, or a checkpoint directory.")]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[OUT] TYPE [THREADS]", help=f"What to write, in which type: {TYPES}."),
]
TargetSize = Annotated[
    str | None,
    typer.Option("--target-size", metavar="SIZE", help="No TYPE: the best types for a file of 700MB, 650MiB, ..."),
]
TargetBits = Annotated[
    str | None,
    typer.Option("--target-bpw", metavar="BITS", help="No TYPE: the best types for so many bits a weight."),
]
Imatrix = Annotated[
    Path | None, typer.Option("--imatrix", metavar="FILE", help="Which columns matter: see `localinfer imatrix`.")
]
IncludeWeights = Annotated[
    list[str] | None,
    typer.Option("--include-weights", metavar="TEXT", help="Use the imatrix only for names with this in them."),
]
ExcludeWeights = Annotated[
    list[str] | None,
    typer.Option("--exclude-weights", metavar="TEXT", help="Do not use it for names with this in them."),
]
Calibrate = Annotated[
    str | None,
    typer.Option("--calibrate", metavar="FILE", help="Make up for errors, layer by layer, on this text: --effort max."),
]
CalibrateChunks = Annotated[
    int | None,
    typer.Option(
        "--calibrate-chunks", metavar="N", min=2, help="So many chunks of 512 tokens of it [default: 64, or all]."
    ),
]
Effort = Annotated[
    str | None,
    typer.Option(
        "--effort",
        metavar="|".join(EFFORTS),
        help="How long to search; max: make up for errors, too, by an imatrix with covariances [default: normal].",
    ),
]
TargetModelDir = Annotated[
    str | None,
    typer.Option("--target-model-dir", metavar="DIR", help="The checkpoint of the model that a head guesses for."),
]
Pure = Annotated[bool, typer.Option("--pure", help="One type for all matrices.")]
LeaveOutputTensor = Annotated[bool, typer.Option("--leave-output-tensor", help="Leave output.weight as it is.")]
OutputTensorType = Annotated[
    str | None, typer.Option("--output-tensor-type", metavar="TYPE", help="The type of output.weight.")
]
TokenEmbeddingType = Annotated[
    str | None, typer.Option("--token-embedding-type", metavar="TYPE", help="The type of the token embeddings.")
]
TensorType = Annotated[
    list[str] | None,
    typer.Option("--tensor-type", metavar="REGEX=TYPE", help="The type of tensors by name; the first one counts."),
]
TensorTypeFile = Annotated[
    Path | None, typer.Option("--tensor-type-file", metavar="FILE", help="A file with more of REGEX=TYPE.")
]
OverrideKv = Annotated[
    list[str] | None,
    typer.Option("--override-kv", metavar="KEY=TYPE:VALUE", help="Other metadata; int, float, bool or str."),
]
PruneLayers = Annotated[
    str | None, typer.Option("--prune-layers", metavar="N,...", help="Leave out these layers; the first one is 0.")
]
AllowRequantize = Annotated[
    bool, typer.Option("--allow-requantize", help="Let quantized tensors be quantized again, at a loss.")
]
KeepSplit = Annotated[
    bool, typer.Option("--keep-split", help="As many files as the source has: OUT-00001-of-00003.gguf.")
]
ReportFile = Annotated[
    str | None,
    typer.Option("--report", metavar="FILE", help="Write there, .html or .json, what it cost each tensor."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show types and sizes, write nothing.")]
Force = Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")]
