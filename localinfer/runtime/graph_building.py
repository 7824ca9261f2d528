"""Builds the compute graph of a model file for the options of a run. Nothing is allocated or compiled."""

from dataclasses import replace
from typing import NamedTuple

from localinfer import architectures
from localinfer.gguf.reader import GGUF
from localinfer.graph.cache.ring_buffer import attention_sinks
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.graph.properties.adapters import Adapters
from localinfer.graph.properties.direction import is_causal, is_diffusion
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.properties.model_properties import has_decoder, trained_context
from localinfer.graph.properties.repeated_layers import with_repeated_layers
from localinfer.graph.recording.context import Context
from localinfer.graph.recording.graph_builder import GraphBuilder
from localinfer.graph.recording.model_graph import HookedGraph, ModelGraph
from localinfer.machine import resources
from localinfer.options import Options, Precision, parse_speculation_types

LOGITS_BYTES = 32 << 20  # approximate size of the logits buffer
LARGEST_DEFAULT_CONTEXT, SMALLEST_DEFAULT_CONTEXT = 32_768, 2048
ACTIVATION_PASSES: dict[Precision, int] = {"fast": 1, "high": 2}
DECODER_PRECISION: Precision = "fast"  # by default
ENCODER_PRECISION: Precision = "high"


class Extensions(NamedTuple):
    """What a model is loaded with beside its own file.

    A `draft_head` from another file drafts tokens in place of the model's own MTP head
    (`localinfer.graph.recording.separate_heads`). `adapters` change the weights. With `media`, embeddings of images and
    sounds can take the place of tokens.
    """

    draft_head: GGUF | None = None
    adapters: Adapters | None = None
    media: bool = False


NO_EXTENSIONS = Extensions()


def build_graph_within_memory(
    available: int, f: GGUF, options: Options, extensions: Extensions = NO_EXTENSIONS
) -> ModelGraph:
    """Build the graph. If no context length is set, halve it until the graph and the mapped weights fit into memory."""
    model_graph = build_graph(f, options, extensions)
    mapped = [each for each in (f, extensions.draft_head) if each and not each.in_memory]
    weights = sum(tensor.nbytes for each in mapped for tensor in each.tensors.values())
    weights += extensions.adapters.nbytes if extensions.adapters else 0
    while not options.ctx_size and model_graph.context.n_ctx > SMALLEST_DEFAULT_CONTEXT:
        if weights + model_graph.graph.nbytes <= available:
            break
        n_ctx = max(model_graph.context.n_ctx // 2, SMALLEST_DEFAULT_CONTEXT)
        model_graph = build_graph(f, replace(options, ctx_size=n_ctx), extensions)
    return model_graph


def build_graph(
    f: GGUF, options: Options, extensions: Extensions = NO_EXTENSIONS, hooks: HookedGraph | None = None
) -> ModelGraph:
    """Build and check the model's compute graph. A graph with `hooks` has no draft head."""
    build_model = architectures.find_build_function(f, options.architecture)
    f = with_repeated_layers(f)
    keys = Hyperparameters(f)
    uses_draft_head = "head" in parse_speculation_types(options.spec_type) and not hooks
    draft_head = extensions.draft_head if uses_draft_head else None
    context = context_of(f, keys, options)
    context = context._replace(
        draft_head=uses_draft_head and not extensions.draft_head, media=extensions.media and context.causal
    )
    model = ModelGraph(f, keys, empty_graph(f, context, options), context, extensions.adapters, hooks)
    if draft_head and context.causal:
        from localinfer.graph.recording.separate_heads import build_with_draft_head

        build_with_draft_head(model, build_model, draft_head)
    else:
        builder = GraphBuilder(model)
        if hooks and hooks.log:
            hooks.log.attach(builder, model.graph)
        build_model(builder)
        if hooks and hooks.log:
            model.graph.separate_ops()
    model.reject_unused()
    return model


def context_of(f: GGUF, keys: Hyperparameters, options: Options) -> Context:
    """Return the context of a model without extensions."""
    causal, diffusion = is_causal(keys), is_diffusion(keys)
    largest = SMALLEST_DEFAULT_CONTEXT if diffusion else LARGEST_DEFAULT_CONTEXT
    n_ctx = options.ctx_size or min(trained_context(keys), largest)
    wraps = options.ctx_policy == "ring" and causal
    return Context(
        n_ctx, attention_sinks(options.keep, n_ctx) if wraps else 0, wraps, options.cache_type_k, options.cache_type_v,
        causal, encoder_decoder=has_decoder(f), predicts_experts=bool(options.memory), diffusion=diffusion,
    )  # fmt: skip


def empty_graph(f: GGUF, context: Context, options: Options) -> ComputeGraph:
    """Return a graph without ops: the size of its batches, its threads and the precision of activations."""
    is_divided = context.causal and not context.encoder_decoder  # a prompt may be evaluated in several batches
    is_encoder = not context.causal and not context.diffusion
    n_ctx = context.n_ctx
    batch = max(1, min(options.batch_size, options.ubatch_size, n_ctx)) if is_divided else n_ctx
    embedding = f.tensors.get("token_embd.weight")
    n_vocab = embedding.shape[0] if embedding is not None else 1
    sequences = min(options.parallel, batch) if context.causal else 1
    outputs = batch if is_encoder else max(sequences, min(batch, LOGITS_BYTES // (4 * max(1, n_vocab))))
    threads = options.threads or resources.default_threads()
    default = ENCODER_PRECISION if is_encoder else DECODER_PRECISION
    passes = ACTIVATION_PASSES[default if options.precision == "auto" else options.precision]
    return ComputeGraph(batch, outputs, threads, options.threads_batch or threads, passes, sequences)
