"""The empty graph of an encoder, to which a builder adds operations, and a check of the graph that results."""

from dataclasses import replace

import numpy as np

from localinfer.errors import NotEnoughMemoryError, UnsupportedError
from localinfer.gguf.reader import GGUF
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.graph.properties.attention import AttentionHeads
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.recording.context import Context
from localinfer.graph.recording.model_graph import HookedGraph, ModelGraph
from localinfer.machine import resources
from localinfer.multimodal.encoder_graph.encoder_tensors import EncoderTensors
from localinfer.options import Options
from localinfer.runtime.graph_building import ACTIVATION_PASSES, ENCODER_PRECISION

CACHE_TYPES = {"fast": "f16", "high": "f32"}  # of keys and values, by precision
MAX_HEAD_SIZE = 1 << 12
IGNORE_DAMAGED_WEIGHTS = np.errstate(over="ignore", invalid="ignore")  # the host computes with them as kernels do
HOST_BYTES = 24  # of each value of a row, for positions in double precision; the activations of a layer need more


def encoder_model(
    f: GGUF, hparams: Hyperparameters, tensors: EncoderTensors, n_rows: int, options: Options,
    hooks: HookedGraph | None = None,
) -> ModelGraph:  # fmt: skip
    """Return the graph of an encoder whose residual stream has this number of rows, without operations. Raises
    NotEnoughMemoryError if there is too little memory even for what the host computes while operations are added."""
    key_size = hparams.count("attention.head_dim", 0, minimum=0, maximum=MAX_HEAD_SIZE)
    length = max(key_size, hparams.count("embedding_length"))
    require_memory(f, f"the input of {n_rows} rows", HOST_BYTES * n_rows * length)
    precision = ENCODER_PRECISION if options.precision == "auto" else options.precision
    threads = options.threads or resources.default_threads()
    graph = ComputeGraph(n_rows, 1, threads, options.threads_batch or threads, ACTIVATION_PASSES[precision])
    cache_type = CACHE_TYPES[precision]
    context = Context(n_rows, k_type=cache_type, v_type=cache_type, causal=False)
    model = ModelGraph(f, hparams, graph, context, hooks=hooks)
    model.tensors = tensors
    return model


def with_a_layer(f: GGUF, prefix: str) -> GGUF:
    """Return the file of an encoder without layers as one with a layer that has no tensors, and one head."""
    return replace(f, metadata={**f.metadata, f"{prefix}.block_count": 1, f"{prefix}.attention.head_count": 1})


def read_heads(model: ModelGraph) -> AttentionHeads:
    """Return the attention heads, which are the same in all layers."""
    heads, key = model.attention_heads[0], "attention.head_dim"
    if not model.hparams.has(key):
        return heads
    size = model.hparams.count(key, maximum=MAX_HEAD_SIZE)
    return replace(heads, key=size, value=size)


def require_memory(f: GGUF, name: str, nbytes: int) -> None:
    """Raise NotEnoughMemoryError before memory is allocated that the machine does not have. `name` needs it."""
    available = resources.available_memory()
    if nbytes > available:
        what = f"{name} needs {nbytes / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are available"
        raise f.error("memory", what, NotEnoughMemoryError)


def check_lengths(f: GGUF, graph: ComputeGraph) -> None:
    """Raise UnsupportedError for rows whose length is not a multiple of what kernels read at a time."""
    for op in graph.ops:
        for buffer in op.arguments:
            if isinstance(buffer, Buffer) and buffer.n % (32 if buffer.bf16.region else 16):
                raise f.error(f"tensor {op.name}", f"rows of {buffer.n} values are not supported", UnsupportedError)
