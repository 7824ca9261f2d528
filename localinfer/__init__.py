"""localinfer: a local LLM runtime. `load` a model, then call `generate` or `chat`.

Importing this package is cheap: each public name is imported from its module on first access, so that a command line
that only prints its help does not import numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localinfer.chat_template.conversation import Message
    from localinfer.chat_template.prompt import Prompt
    from localinfer.embedding.reranking import RankedDocument
    from localinfer.errors import (
        ConstraintError,
        ContextOverflowError,
        IncompleteOutputError,
        InvalidOutputError,
        LocalInferError,
        ModelNotFoundError,
        NotEnoughMemoryError,
        UnsupportedError,
        UsageError,
    )
    from localinfer.evaluation.views.attention_maps import AttentionMap, AttentionMaps
    from localinfer.evaluation.views.logit_lens import LogitLens
    from localinfer.evaluation.views.token_probabilities import TokenProbabilities
    from localinfer.file_operations import (
        compare,
        control_vector,
        convert,
        dequantize,
        imatrix,
        merge_lora,
        perplexity,
        quantize,
        verify,
    )
    from localinfer.generation.pieces import Piece, Stats, ToolCall
    from localinfer.generation.result import GenerationResult, GenerationStream, TokenLogprob
    from localinfer.harness.run import Evaluation, evaluate
    from localinfer.model import Model, load
    from localinfer.options import Options
    from localinfer.runtime.activations.hooks import RowInfo
    from localinfer.runtime.activations.trace import Trace

__all__ = [
    "AttentionMap", "AttentionMaps", "ConstraintError", "ContextOverflowError", "Evaluation", "GenerationResult",
    "GenerationStream", "IncompleteOutputError", "InvalidOutputError", "LocalInferError", "LogitLens", "Message",
    "Model", "ModelNotFoundError", "NotEnoughMemoryError", "Options", "Piece", "Prompt", "RankedDocument",
    "RowInfo", "Stats", "TokenLogprob", "TokenProbabilities", "ToolCall", "Trace", "UnsupportedError", "UsageError",
    "compare", "control_vector", "convert", "dequantize", "evaluate", "imatrix", "load", "merge_lora", "perplexity",
    "quantize", "verify",
]  # fmt: skip

_NAMES = {  # the public names of each module
    "chat_template.conversation": ["Message"],
    "chat_template.prompt": ["Prompt"],
    "embedding.reranking": ["RankedDocument"],
    "evaluation.views.attention_maps": ["AttentionMap", "AttentionMaps"],
    "evaluation.views.logit_lens": ["LogitLens"],
    "evaluation.views.token_probabilities": ["TokenProbabilities"],
    "file_operations": [
        "compare", "control_vector", "convert", "dequantize", "imatrix", "merge_lora", "perplexity", "quantize",
        "verify",
    ],
    "generation.pieces": ["Piece", "Stats", "ToolCall"],
    "generation.result": ["GenerationResult", "GenerationStream", "TokenLogprob"],
    "harness.run": ["Evaluation", "evaluate"],
    "model": ["Model", "load"],
    "options": ["Options"],
    "runtime.activations.hooks": ["RowInfo"],
    "runtime.activations.trace": ["Trace"],
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
