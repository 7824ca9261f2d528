"""A projector file: a GGUF with the encoder of a multimodal model, as llama.cpp writes it (`mmproj`).

The file is untrusted: building the graph checks every tensor and key that it uses by name, and refuses those that it
does not use. A file that does not belong to the language model is refused, too.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from localinfer.errors import LocalInferError, UnsupportedError, UsageError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF, Tensor, open_gguf
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.graph.properties.attention import AttentionHeads
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.recording.context import Context
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.machine import resources
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder, read_class_rows
from localinfer.multimodal.encoder_graph.encoder_tensors import EncoderTensors
from localinfer.multimodal.encoders import Encoder, find_encoder, known
from localinfer.options import Options
from localinfer.runtime.compiled_graph import ACTIVATION_PASSES, DEFAULT_PRECISION

ARCHITECTURE, PREFIX = "clip", "clip.vision"
MAX_IMAGE_SIZE, MAX_PATCH_SIZE, MAX_PATCHES = 1 << 14, 1 << 10, 1 << 17
CACHE_TYPES = {"fast": "f16", "high": "f32"}  # of keys and values, by precision
USED_BY_PREPROCESSORS = (
    "image_mean", "image_std", "image_min_pixels", "image_max_pixels", "preproc_image_size", "preproc_min_tiles",
    "preproc_max_tiles", "image_grid_pinpoints", "image_crop_resolution", "image_aspect_ratio",
    "image_split_resolution", "mm_projector_type",
)  # fmt: skip
OTHER_KEYS = (
    "clip.has_vision_encoder", "clip.has_text_encoder", "clip.has_audio_encoder", "clip.has_llava_projector",
    "clip.projector_type", "clip.vision.projector_type", "clip.use_gelu", "clip.use_silu",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ProjectorFile:
    """An open projector file that fits its language model. `deepstack` is the number of layers of the language model to
    which it adds rows."""

    f: GGUF
    projector_type: str
    encoder: Encoder
    embedding_length: int
    deepstack: int = 0
    converted: dict[str, Tensor] = field(default_factory=dict)  # tensors that the host has converted

    def build(self, grid: tuple[int, int], options: Options) -> tuple[EncoderBuilder, Buffer]:
        """Build and check the graph for images with this grid of patches. Nothing is allocated or compiled. Return the
        builder and the output rows."""
        f, hparams = self.f, Hyperparameters(self.f, PREFIX)
        hparams.accept(*USED_BY_PREPROCESSORS, "image_size", "feed_forward_length", "projection_dim")
        precision = DEFAULT_PRECISION[False] if options.precision == "auto" else options.precision
        threads = options.threads or resources.default_threads()
        tensors = EncoderTensors(f, "v.blk.", hparams.count("block_count"), self.converted)
        n = grid[0] * grid[1] + len(read_class_rows(tensors, hparams.count("embedding_length")))
        if n > MAX_PATCHES:
            raise LocalInferError(f"an image of {grid[0]} x {grid[1]} patches is too large; the limit is {MAX_PATCHES}")
        graph = ComputeGraph(n, 1, threads, options.threads_batch or threads, ACTIVATION_PASSES[precision])
        cache_type = CACHE_TYPES[precision]
        model = ModelGraph(f, hparams, graph, Context(n, k_type=cache_type, v_type=cache_type, causal=False))
        model.tensors = tensors
        g = EncoderBuilder(model, grid, read_heads(model))
        output = self.encoder.build(g)
        tensors.reject_unused()
        hparams.reject_unused()
        check_lengths(f, graph)
        if output.n != self.embedding_length * (1 + self.deepstack):
            what = f"makes rows of {output.n} values; the model needs {self.embedding_length * (1 + self.deepstack)}"
            raise f.error("clip.projector_type", f"{self.projector_type} {what}")
        return g, output


def open_projector(path: str | Path, model: GGUF) -> ProjectorFile:
    """Open the projector file of a language model.

    Raises LocalInferError for an invalid file, UnsupportedError for an encoder that cannot run, UsageError for a file
    that does not belong to the model.
    """
    f = open_gguf(path)
    architecture = f.get("general.architecture", str)
    if architecture != ARCHITECTURE:
        what = f"is {printable(architecture, 80)!r}; the file of a projector has {ARCHITECTURE!r}"
        raise f.error("general.architecture", what, UsageError)
    if not f.get("clip.has_vision_encoder", bool, False):
        raise f.error("clip.has_vision_encoder", "is false; only encoders of images are supported", UnsupportedError)
    name, encoder = read_encoder(f)
    reject_unknown_keys(f)
    length, deepstack = check_pair(f, name, encoder, model)
    file = ProjectorFile(f, name, encoder, length, deepstack)
    file.build(smallest_grid(f), Options())
    return file


def read_encoder(f: GGUF) -> tuple[str, Encoder]:
    """Return the projector type and its encoder."""
    key = "clip.projector_type" if "clip.projector_type" in f.metadata else "clip.vision.projector_type"
    name = f.get(key, str)
    encoder = find_encoder(name)
    if encoder is None:
        what = f"{printable(name, 80)!r} is not supported (supported: {', '.join(known())})"
        raise f.error(key, what, UnsupportedError)
    return name, encoder


def check_pair(f: GGUF, name: str, encoder: Encoder, model: GGUF) -> tuple[int, int]:
    """Return the embedding length of the language model, and its number of DeepStack layers. Raises UsageError if the
    projector is that of another model."""
    architecture = model.get("general.architecture", str)
    if encoder.architectures and architecture not in encoder.architectures:
        what = f"{name} belongs to {' or '.join(encoder.architectures)} models, not to {printable(architecture, 80)}"
        raise f.error("clip.projector_type", what, UsageError)
    length = model.get(f"{architecture}.embedding_length", int)
    deepstack = model.get(f"{architecture}.n_deepstack_layers", int, 0)
    projected = f.get(f"{PREFIX}.projection_dim", int)
    if projected != length and encoder.has_projection_dim:
        what = f"is {projected}; the embedding length of {printable(model.path.name, 80)} is {length}"
        raise f.error(f"{PREFIX}.projection_dim", what, UsageError)
    return length, deepstack


def reject_unknown_keys(f: GGUF) -> None:
    """Raise UnsupportedError for a key of the projector that nothing reads. Building the graph checks the keys of the
    encoder."""
    for key in f.metadata:
        if key.startswith("clip.") and not key.startswith(f"{PREFIX}.") and key not in OTHER_KEYS:
            raise f.error(key, "is not supported", UnsupportedError)


def check_lengths(f: GGUF, graph: ComputeGraph) -> None:
    """Raise UnsupportedError for rows whose length is not a multiple of what kernels read at a time."""
    for op in graph.ops:
        for buffer in op.arguments:
            if isinstance(buffer, Buffer) and buffer.n % (32 if buffer.bf16.region else 16):
                raise f.error(f"tensor {op.name}", f"rows of {buffer.n} values are not supported", UnsupportedError)


def smallest_grid(f: GGUF) -> tuple[int, int]:
    """Return the grid of patches of a square image of the size that the file names."""
    size, patch = (f.get(f"{PREFIX}.{key}", int) for key in ("image_size", "patch_size"))
    if not (1 <= patch <= MAX_PATCH_SIZE and patch <= size <= MAX_IMAGE_SIZE):
        raise f.error(f"{PREFIX}.image_size", f"is {size}, with patches of {patch}")
    return size // patch, size // patch


def read_heads(model: ModelGraph) -> AttentionHeads:
    """Return the attention heads, which are the same in all layers."""
    heads, key = model.attention_heads[0], "attention.head_dim"
    if not model.hparams.has(key):
        return heads
    size = model.hparams.count(key, maximum=1 << 12)
    return replace(heads, key=size, value=size)
