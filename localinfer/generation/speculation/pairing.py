"""Whether a model can guess for another one: tokens must mean the same in both."""

from dataclasses import replace

from localinfer.architectures import EAGLE3
from localinfer.engine.engine import Engine
from localinfer.errors import UsageError
from localinfer.files.gguf import GGUF, StringArray
from localinfer.options import Options, guessers_named
from localinfer.text import printable
from quant.jit.loader import Progress

PADDING = 128  # tokens that one vocabulary may have more than the other: they only make matrices of round sizes
TOKENS = "tokenizer.ggml.tokens"
MODEL = "tokenizer.ggml.model"
HEAD = "a head beside a model", "ahead", "draft-eagle3", "draft"
MODEL_OF_ITS_OWN = "a model of its own", "draft", "draft-simple", "ahead"


def draft_engine(f: GGUF, target: Engine, options: Options, progress: Progress | None = None) -> Engine:
    """An engine for the draft model in `f`, with the options that are said of it. Raises what `Engine` raises."""
    own = replace(
        options,
        ctx_size=options.ctx_size_draft or target.n_ctx,
        threads=options.spec_draft_threads or options.threads,
        threads_batch=options.spec_draft_threads_batch or options.spec_draft_threads or options.threads_batch,
        cache_type_k=options.spec_draft_type_k,
        cache_type_v=options.spec_draft_type_v,
        architecture="",
    )
    return Engine(f, own, progress)


def require_same_tokens(draft: GGUF, target: GGUF) -> None:
    """UsageError says what is different."""
    kinds = [f.get(MODEL, str) for f in (draft, target)]
    if kinds[0] != kinds[1]:
        raise other(draft, target, f"{MODEL} is {printable(kinds[0])}, not {printable(kinds[1])}")
    theirs, ours = ([bytes(token) for token in f.get(TOKENS, StringArray)] for f in (draft, target))
    if abs(len(theirs) - len(ours)) > PADDING:
        raise other(draft, target, f"it has {len(theirs)} tokens, not {len(ours)}")
    pairs = zip(theirs, ours, strict=False)
    if (at := next((id for id, (a, b) in enumerate(pairs) if a != b), None)) is not None:
        raise other(draft, target, f"token {at} is {theirs[at]!r}, not {ours[at]!r}")


def require_chosen(draft: GGUF, spec_type: str) -> None:
    """UsageError where `--spec-type` names only those who guess otherwise than this model, or this head, does."""
    is_head = draft.metadata.get("general.architecture") == EAGLE3
    kind, mine, name, others = HEAD if is_head else MODEL_OF_ITS_OWN
    names = guessers_named(spec_type)
    if mine not in names and others in names:
        path = printable(str(draft.path))
        raise UsageError(f"--spec-type {spec_type}: {path} is {kind}: it guesses as {name}")


def other(draft: GGUF, target: GGUF, what: str) -> UsageError:
    return UsageError(f"--spec-draft-model: {printable(str(draft.path))} cannot guess for {target.path.name}: {what}")
