"""Compatibility of a draft model with its target model: both must have the same vocabulary."""

from dataclasses import replace

from localinfer.architectures import DRAFT_HEADS
from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF, StringArray
from localinfer.graph.properties.model_properties import has_decoder
from localinfer.graph.recording.separate_heads.dspark import MARKOV
from localinfer.options import Options, parse_speculation_types
from localinfer.runtime.engine import Engine
from localinfer.tokenizer.segmenters import MODEL
from localinfer.tokenizer.vocabulary import TOKENS
from quant.jit.loader import Progress

MAX_VOCABULARY_DIFFERENCE = 128  # padding tokens that one vocabulary may have in addition
DRAFT_HEAD = "a draft head", "head", "draft"
DRAFT_MODEL = "a draft model", "draft", "head"


def load_draft_engine(f: GGUF, target: Engine, options: Options, progress: Progress | None = None) -> Engine:
    """Return an engine for the draft model in `f`, with the draft options. Raises what `Engine.load` raises."""
    if has_decoder(f) != target.context.encoder_decoder:
        is_one = "it is no" if target.context.encoder_decoder else "it is an"
        raise UsageError(f"draft model: {printable(str(f.path))}: {is_one} encoder-decoder model, unlike the model")
    draft_options = replace(
        options,
        ctx_size=options.ctx_size_draft or target.n_ctx,
        threads=options.spec_draft_threads or options.threads,
        threads_batch=options.spec_draft_threads_batch or options.spec_draft_threads or options.threads_batch,
        cache_type_k=options.spec_draft_type_k,
        cache_type_v=options.spec_draft_type_v,
        architecture="",
    )
    return Engine.load(f, draft_options, progress)


def require_same_vocabulary(draft: GGUF, target: GGUF) -> None:
    """Raise UsageError with the first difference unless both vocabularies are equal up to padding."""
    kinds = [f.get(MODEL, str) for f in (draft, target)]
    if kinds[0] != kinds[1]:
        raise incompatible(draft, target, f"{MODEL} is {printable(kinds[0])}, not {printable(kinds[1])}")
    draft_tokens, target_tokens = ([bytes(token) for token in f.get(TOKENS, StringArray)] for f in (draft, target))
    if abs(len(draft_tokens) - len(target_tokens)) > MAX_VOCABULARY_DIFFERENCE:
        raise incompatible(draft, target, f"it has {len(draft_tokens)} tokens, not {len(target_tokens)}")
    pairs = zip(draft_tokens, target_tokens, strict=False)
    if (index := next((id for id, (a, b) in enumerate(pairs) if a != b), None)) is not None:
        raise incompatible(draft, target, f"token {index} is {draft_tokens[index]!r}, not {target_tokens[index]!r}")


def require_spec_type(draft: GGUF, spec_type: str) -> None:
    """Raise UsageError if `--spec-type` only names the other kind of drafter: draft models or draft heads."""
    flag = "draft-dspark" if MARKOV in draft.tensors else DRAFT_HEADS.get(draft.architecture, "draft-simple")
    kind, expected_type, other_type = DRAFT_HEAD if draft.architecture in DRAFT_HEADS else DRAFT_MODEL
    names = parse_speculation_types(spec_type)
    if expected_type not in names and other_type in names:
        path = printable(str(draft.path))
        raise UsageError(f"spec_type {spec_type}: {path} is {kind}; use {flag}")


def incompatible(draft: GGUF, target: GGUF, problem: str) -> UsageError:
    """Return the error for a draft model that is incompatible with the target."""
    return UsageError(
        f"spec_draft_model: {printable(str(draft.path))} cannot draft for {target.path.name}: {problem}"
    )
