"""Functions that make and measure model files: convert, quantize, imatrix, perplexity, compare, dequantize, verify.

They do what the commands of the same names do, without drawing anything.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, Unpack

from localinfer.adapters import open_adapters
from localinfer.evaluation.perplexity import Mean
from localinfer.gguf.dequantize import dequantize
from localinfer.gguf.overrides import open_overridden
from localinfer.hub import resolve
from localinfer.machine.resources import default_threads
from localinfer.options import CHUNK_SIZE, Value, from_environment, from_keywords, merge
from localinfer.options.keywords import LoadKeywords
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import Extensions
from localinfer.tokenizer import from_gguf as tokenizer_from_gguf
from localinfer.tokenizer.chunks import Chunks, split_text
from quant.jit.loader import Progress

if TYPE_CHECKING:
    from localinfer.adapters.control_vector_making import Method
    from localinfer.evaluation.compare import Summary
    from localinfer.evaluation.verification.file_verification import Inputs
    from localinfer.evaluation.verification.verification import Verification
    from localinfer.gguf.imatrix_file import Imatrix
    from localinfer.gguf.source import Source

__all__ = [
    "compare", "control_vector", "convert", "dequantize", "imatrix", "merge_lora", "perplexity", "quantize", "verify",
]  # fmt: skip

Effort = Literal["fast", "normal", "max"]
ChunkProgress = Callable[[int, int, Mean | None], None]  # chunks done, chunks in total, the result so far


def convert(
    checkpoint: str | Path, out: str | Path, type: str = "F16", *, mmproj: bool = False, force: bool = False
) -> Path:
    """Convert a Hugging Face checkpoint directory to a GGUF file, and return its path.

    `type` is any type that `quantize` accepts. With `mmproj` the encoder of images or sounds is converted instead of
    the text model, to F32, F16, BF16 or Q8_0. Raises what `quantize` raises.
    """
    if mmproj:
        return convert_projector(checkpoint, out, type, force=force)
    return quantize(checkpoint, out, type, force=force)


def quantize(
    source: str | Path,
    out: str | Path,
    type: str,
    *,
    imatrix: str | Path | None = None,
    effort: Effort = "normal",
    threads: int = 0,
    allow_requantize: bool = False,
    force: bool = False,
) -> Path:
    """Quantize a GGUF file, a model by its name or a checkpoint directory, and return the path of the new file.

    `type` is a recipe such as "Q4_K_M", or a tensor type such as "Q8_0". `imatrix` is an importance matrix file.
    `effort` "max" applies error feedback (GPTQ) if that file has covariances. `threads` 0 means the physical cores.
    `force` replaces an existing file.

    Raises UsageError for an unknown type, ModelNotFoundError, UnsupportedError, and LocalInferError for a damaged
    source; then `out` is unchanged.
    """
    from localinfer.errors import UsageError
    from localinfer.quantization.pipeline import EFFORTS, write_plan
    from localinfer.quantization.plan import Request, make_plan
    from localinfer.quantization.quantize import OutputOptions
    from localinfer.quantization.recipes import find_recipe

    recipe = find_recipe(type)
    if recipe is None:
        raise UsageError(f"type: {type} is not a quantization type")
    if effort not in EFFORTS:
        raise UsageError(f"effort: must be {' or '.join(EFFORTS)}, not {effort}")
    path = Path(source) if Path(source).is_dir() else resolve.find(source)
    request = Request(recipe, allow_requantize=allow_requantize, imatrix=Path(imatrix) if imatrix else None)
    plan = make_plan(open_source(path), request)
    options = OutputOptions(replace=force)
    [written] = write_plan(plan, Path(out), effort=effort, threads=threads or default_threads(), options=options)
    return written


def control_vector(
    model: str | Path,
    positive: Sequence[str],
    negative: Sequence[str],
    out: str | Path,
    *,
    method: "Method" = "mean",
    **options: Unpack[LoadKeywords],
) -> Path:
    """Make a control vector from pairs of prompts, write it to `out`, and return the path.

    `positive[i]` and `negative[i]` are a pair: a prompt with a property, and the same one with the opposite. `method`
    is "mean" or "pca" (`localinfer.adapters.control_vector_making`). Raises UsageError for prompts that are no pairs or
    too long, UnsupportedError for a model whose layers cannot run one by one, and what `localinfer.load` raises.
    """
    with closing(open_engine(model, options)) as engine:
        write_control_vector(engine, positive, negative, Path(out), method)
    return Path(out)


def write_control_vector(
    engine: Engine, positive: Sequence[str], negative: Sequence[str], out: Path, method: "Method",
    progress: Callable[[int, int], None] | None = None,
) -> int:  # fmt: skip
    """Make a control vector with an open engine, and write it. Return the number of layers. See `control_vector`."""
    from localinfer.adapters import control_vector_making as making
    from localinfer.errors import UsageError

    if len(positive) != len(negative):
        raise UsageError(f"prompts: there are {len(positive)} positive and {len(negative)} negative ones")
    tokenizer = tokenizer_from_gguf(engine.file)
    pairs = [
        (tokenizer.encode(with_it, parse_special=True), tokenizer.encode(without, parse_special=True))
        for with_it, without in zip(positive, negative, strict=True)
    ]
    found = making.compute_directions(engine, pairs, method, progress)
    making.write_control_vector(out, found, engine.file.get("general.architecture", str), replace=True)
    return len(found)


class Merged(NamedTuple):
    """A model with merged adapters: its file, and the number of matrices that were quantized again, by type."""

    path: Path
    requantized: Mapping[str, int]


def merge_lora(
    model: str | Path,
    out: str | Path,
    adapters: Sequence[tuple[str | Path, float]],
    *,
    effort: Effort = "normal",
    threads: int = 0,
    force: bool = False,
    progress: Progress | None = None,
) -> Merged:
    """Write a model with LoRA adapters added to its weights, each with a scale. Every tensor keeps its type.

    `model` is a GGUF file, a model by its name or a checkpoint directory. Matrices of a quantized type that change are
    computed in F32 and quantized again. `effort`, `threads` and `force` are those of `quantize`. `progress` is called
    while kernels are compiled.

    Raises UsageError without adapters, LocalInferError for an adapter that does not fit the model, and what `quantize`
    raises; then `out` is unchanged.
    """
    from collections import Counter

    from localinfer.adapters.merging import merge_adapters
    from localinfer.errors import UsageError
    from localinfer.quantization.quantize import OutputOptions, compile_kernels, make_encoder_factory
    from localinfer.quantization.quantize import quantize as write
    from quant import FORMATS, ggml

    if not adapters:
        raise UsageError("adapters: there are none to merge")
    path = Path(model) if Path(model).is_dir() else resolve.find(model)
    source = open_source(path)
    merged = merge_adapters(source, [(Path(name), scale) for name, scale in adapters], exact=True)
    embedding = source.tensors.get("token_embd.weight")
    originals = dict(source.tensors) | ({"output.weight": embedding} if embedding else {}) | dict(source.tensors)
    types = {name: originals[name].type for name in merged.tensors}
    changed = [types[name] for name, tensor in merged.tensors.items() if tensor.type != types[name]]
    compile_kernels({tensor.type for tensor in merged.tensors.values()}, set(changed), effort, progress)
    [written] = write(
        merged, Path(out), types, encoder_factory=make_encoder_factory(effort, {}),
        threads=threads or default_threads(), options=OutputOptions(replace=force),
    )  # fmt: skip
    return Merged(written, Counter(ggml.TYPES[type].name for type in changed if not FORMATS[type].is_float))


def convert_projector(checkpoint: str | Path, out: str | Path, type: str, *, force: bool) -> Path:
    """Convert the encoder of a checkpoint, and return the path of the file. Raises what `quantize` raises."""
    from localinfer.conversion.projector import open_projector
    from localinfer.quantization.pipeline import write_plan
    from localinfer.quantization.projector_plan import make_projector_plan
    from localinfer.quantization.quantize import OutputOptions

    plan = make_projector_plan(open_projector(checkpoint), type.upper())
    [written] = write_plan(plan, Path(out), threads=default_threads(), options=OutputOptions(replace=force))
    return written


def imatrix(
    model: str | Path,
    text: str,
    out: str | Path,
    *,
    covariance: bool = False,
    max_chunks: int = 0,
    progress: ChunkProgress | None = None,
    **options: Unpack[LoadKeywords],
) -> "Imatrix":
    """Compute an importance matrix of a model on a text, write it to `out`, and return it.

    The text is evaluated in chunks of `ctx_size` tokens (512), at most `max_chunks` (0: all). `covariance` also sums
    the products of all pairs of inputs, for `quantize(effort="max")`. Raises UsageError for a text that is too
    short, and what `localinfer.load` raises.
    """
    from localinfer.gguf import imatrix_file

    with closing(open_engine(model, options)) as engine:
        calibration = CalibrationData(text, max_chunks=max_chunks)
        found = collect_imatrix(engine, calibration, covariance=covariance, progress=progress)
    imatrix_file.write_imatrix(Path(out), found, replace=True)
    return found


def perplexity(
    model: str | Path,
    text: str,
    *,
    max_chunks: int = 0,
    progress: ChunkProgress | None = None,
    **options: Unpack[LoadKeywords],
) -> Mean:
    """Return the perplexity of a model on a text, as `value` and standard `error`.

    The method is llama-perplexity's: chunks of `ctx_size` tokens (512), of which the second half is scored. Raises
    UsageError for a text that is too short, and what `localinfer.load` raises.
    """
    with closing(open_engine(model, options)) as engine:
        return measure_perplexity(engine, text, max_chunks=max_chunks, progress=progress)


def compare(
    base: str | Path,
    model: str | Path,
    text: str,
    *,
    max_chunks: int = 0,
    progress: ChunkProgress | None = None,
    **options: Unpack[LoadKeywords],
) -> "Summary":
    """Return how far a model, such as a quantized one, is from a base model on a text.

    The summary has the KL divergence, both perplexities and the top-1 agreement. Raises UsageError for a text that is
    too short or models with different vocabularies, and what `localinfer.load` raises.
    """
    with closing(open_engine(base, options)) as first, closing(open_engine(model, options)) as second:
        return compare_engines(first, second, text, max_chunks=max_chunks, progress=progress)


def open_source(
    path: Path,
    target_model_dir: str | None = None,
    pruned: tuple[int, ...] = (),
    adapters: Sequence[tuple[Path, float]] = (),
    conversion: str | None = None,
) -> "Source":
    """Open a GGUF file or a checkpoint directory, without the layers `pruned`, and with LoRA adapters and their scales.

    `target_model_dir` is the checkpoint of the model that a draft head belongs to, `conversion` a Python file that
    describes checkpoints of an architecture of the user's own. Raises LocalInferError for a damaged
    file and UnsupportedError for an architecture that cannot be converted.
    """
    from localinfer.adapters.merging import merge_adapters
    from localinfer.quantization.prune import prune_layers

    if path.is_dir():
        from localinfer.conversion import open_checkpoint

        source = open_checkpoint(path, target_model_dir, conversion)
    else:
        from localinfer.gguf.gguf_source import from_gguf

        source = from_gguf(path)
    return prune_layers(merge_adapters(source, adapters), pruned)


VERIFIED_CONTEXT = 256  # tokens
NOT_DECODING = MappingProxyType({"ctx_size": CHUNK_SIZE, "tune": False})  # only decode steps are tuned


def open_engine(
    name: str | Path,
    keywords: LoadKeywords,
    defaults: Mapping[str, Value] = NOT_DECODING,
    progress: Progress | None = None,
) -> Engine:
    """Open a model without a session. Precedence, highest first: keywords, environment, `defaults`, models.toml."""
    environment, named = from_environment(os.environ), resolve.default_options(name)
    options = merge(from_keywords(keywords), environment, defaults, named)
    f = open_overridden(resolve.find(name), options)
    return Engine.load(f, options, progress, Extensions(adapters=open_adapters(f, options)))


def verify(
    model: str | Path, text: str | None = None, *, n_tokens: int = 32, image: str | Path | bytes | None = None,
    audio: str | Path | bytes | None = None, **options: Unpack[LoadKeywords],
) -> "Verification":  # fmt: skip
    """Check that this machine computes a model correctly, operation by operation
    (`localinfer.evaluation.verification`).

    The first tokens of a text are evaluated, at most `n_tokens`. The encoders of a projector (`mmproj`, or `model`
    itself) or of a speech recognition model are checked with an image and a sound: paths or contents of files, or
    generated ones. `checks` of the result has the error of each operation beside the error that is allowed,
    `first_wrong` is the first one that is wrong, or None.

    Raises UsageError for a text without tokens and for a projector of another model, UnsupportedError for an image or a
    sound that the projector does not encode, and what `localinfer.load` raises.
    """
    from localinfer.evaluation.verification.file_verification import Inputs
    from localinfer.evaluation.verification.verification import Verification
    from localinfer.multimodal.access import read_bytes
    from localinfer.multimodal.reading import read_image, read_sound

    def content(given: str | Path | bytes, field: str) -> bytes:
        return given if isinstance(given, bytes) else read_bytes(Path(given), field)

    read = Inputs(
        text, n_tokens, None if image is None else read_image(content(image, "image"), "image"),
        None if audio is None else read_sound(content(audio, "audio"), "audio"),
    )  # fmt: skip
    return Verification.joined([found for _, found in verify_files(resolve.find(model), options, read)])


def verify_files(
    path: Path, keywords: LoadKeywords, inputs: "Inputs", progress: Progress | None = None,
    on_operation: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[Path, "Verification"]]:  # fmt: skip
    """Verify a file and its projector, and show the progress. Yield what was found in each. See `verify`."""
    from localinfer.evaluation.verification import file_verification
    from localinfer.gguf.reader import open_gguf

    given = from_keywords(keywords)
    defaults: Mapping[str, Value] = {"ctx_size": max(inputs.n_tokens, VERIFIED_CONTEXT)}
    options = merge(given, from_environment(os.environ), defaults, resolve.default_options(path))
    f = open_overridden(path, options)
    file_verification.reject_text(f, given, inputs)
    projector = open_gguf(resolve.find(options.mmproj)) if options.mmproj else None
    files = file_verification.Files(f, projector, open_adapters(f, options))
    return file_verification.verify(files, options, inputs, progress, on_operation)


class CalibrationData(NamedTuple):
    """A text and the chunks of it that are used: `max_chunks` (0: all) after the first `from_chunk`."""

    text: str
    dataset: str = ""  # the name of the text
    from_chunk: int = 0
    max_chunks: int = 0
    parse_special: bool = False


def collect_imatrix(
    engine: Engine,
    calibration: CalibrationData,
    *,
    covariance: bool = False,
    output_layer: bool = False,
    progress: ChunkProgress | None = None,
) -> "Imatrix":
    """Return the importance matrix of a model on calibration data; with `output_layer`, also of the output matrix."""
    from localinfer.errors import UsageError
    from localinfer.evaluation.imatrix import Collector

    text, dataset, first, limit, parse_special = calibration
    chunks = split(engine, text, first + limit if limit else 0, parse_special=parse_special)[first:]
    if not len(chunks):
        raise UsageError(f"--from-chunk: the text has no chunk after the first {first}")
    collector = Collector(engine, process_output=output_layer, covariance=covariance)
    for done in collector.collect(chunks):
        if progress is not None:
            progress(done, len(chunks), None)
    return collector.to_imatrix(dataset)


def measure_perplexity(
    engine: Engine, text: str, *, max_chunks: int = 0, progress: ChunkProgress | None = None
) -> Mean:
    """Return the perplexity of a model on a text; `progress` receives the perplexity so far."""
    from localinfer.evaluation.perplexity import perplexity as estimates

    chunks = split(engine, text, max_chunks)
    for done, estimate in enumerate(estimates(engine, chunks), 1):
        if progress is not None:
            progress(done, len(chunks), estimate)
    return estimate


def compare_engines(
    base: Engine, other: Engine, text: str, *, max_chunks: int = 0, progress: ChunkProgress | None = None
) -> "Summary":
    """Compare a model with a base model on a text; `progress` receives the mean KL divergence so far."""
    from localinfer.evaluation.compare import compare as scores_so_far
    from localinfer.evaluation.compare import summarize

    chunks = split(base, text, max_chunks)
    for done, scores in enumerate(scores_so_far(base, other, chunks), 1):
        if progress is not None:
            progress(done, len(chunks), Mean.of(scores.divergence))
    return summarize(scores)


def split(engine: Engine, text: str, max_chunks: int, *, parse_special: bool = False) -> Chunks:
    """Tokenize a text and split it into chunks of the engine's context, int32 (n_chunks, n_ctx)."""
    tokenizer = tokenizer_from_gguf(engine.file)
    return split_text(tokenizer, text, engine.n_ctx, max_chunks=max_chunks, parse_special=parse_special)
