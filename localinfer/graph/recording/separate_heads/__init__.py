"""Draft heads in files of their own, by their architectures."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localinfer.gguf.reader import GGUF
from localinfer.graph.builder import Builder
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.recording.draft_head import DraftBlockHead, DraftHead
from localinfer.graph.recording.graph_builder import GraphBuilder
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.graph.recording.separate_heads import dflash, eagle3
from localinfer.graph.recording.separate_heads.gemma4_assistant import build_gemma4_assistant

BUILDERS: Mapping[str, Callable[[GraphBuilder, GraphBuilder], DraftHead | DraftBlockHead]] = {
    "eagle3": eagle3.build_eagle3_head,
    "gemma4-assistant": build_gemma4_assistant,
    "dflash": dflash.build_dflash_head,
}
FEATURE_LAYERS: Mapping[str, Callable[[ModelGraph, ModelGraph], Sequence[int]]] = {  # of heads that read such inputs
    "eagle3": eagle3.feature_layers,
    "dflash": dflash.feature_layers,
}


def build_with_draft_head(model: ModelGraph, build_model: Callable[[Builder[Any]], None], draft_head: GGUF) -> None:
    """Build the graphs of a model and of a separate draft head. Raises LocalInferError if the head does not fit."""
    # The head looks up tokens itself, and all its experts are in memory.
    context = model.context._replace(media=False, predicts_experts=False)
    head = ModelGraph(draft_head, Hyperparameters(draft_head), model.graph, context)
    if draft_head.architecture in FEATURE_LAYERS:
        model.capture_inputs(FEATURE_LAYERS[draft_head.architecture](head, model))
    target = GraphBuilder(model)
    build_model(target)
    model.require_captured_inputs()
    model.draft_head = BUILDERS[draft_head.architecture](GraphBuilder(head), target)
