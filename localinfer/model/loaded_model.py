"""Loading a model: `load`, the model that it returns, and the handles of that model for concurrent runs."""

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

from localinfer import architectures, paths, tokenizer
from localinfer.adapters import open_adapters
from localinfer.architectures import DRAFT_HEADS
from localinfer.errors import UsageError
from localinfer.generation.pieces import Piece, Stats
from localinfer.generation.session import GenerationSession
from localinfer.generation.token_selection import SamplerFunction
from localinfer.gguf.overrides import open_overridden
from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.hub import resolve
from localinfer.hub.projectors import projector_of
from localinfer.model.model import Model
from localinfer.model.shared_resources import SharedResources
from localinfer.options import (
    Options,
    from_environment,
    from_keywords,
    from_metadata,
    merge,
    parse_speculation_types,
)
from localinfer.options.keywords import LoadKeywords
from localinfer.runtime import weight_loading
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import Extensions
from quant.jit.loader import Progress

if TYPE_CHECKING:  # constraints and the scheduler are imported when needed
    from localinfer.generation.structured.constraint import Constraint
    from localinfer.model.media_encoder import MediaEncoder
    from localinfer.prefix_store.store import PrefixStore
    from localinfer.runtime.scheduling.scheduler import Scheduler


def load(path_or_name: str | Path, *, progress: Progress | None = None, options: Options | None = None,
         **keywords: Unpack[LoadKeywords]) -> "Model":
    """Load a GGUF file, or a model by its name, and prepare it for inference.

    `keywords` are fields of `Options`, such as `ctx_size=2048`, or their names in other libraries, such as
    `max_tokens`. Precedence, highest first: `keywords`, environment variables (`LOCALINFER_*`), models.toml, the
    metadata of the file. `options` replace all of these except the keywords. `progress` is called with stage,
    done and total.

    The first load compiles the kernels that decoding needs. Those for long prompts are compiled in the background until
    the end of the `with` block; prompts are evaluated in small batches meanwhile.

    Raises UsageError for an invalid option, ModelNotFoundError, UnsupportedError, NotEnoughMemoryError, and
    LocalInferError for a damaged file.
    """
    name = _check_name(path_or_name)
    keyword_options = from_keywords(keywords)
    if options is not None:
        merged = merge(keyword_options, asdict(options))
        return LoadedModel(open_overridden(resolve.find(name), merged), merged, progress, name)
    layers = keyword_options, from_environment(os.environ), resolve.default_options(name)
    f = open_overridden(resolve.find(name), merge(*layers))
    merged = merge(*layers, from_metadata(f.metadata, f.path))
    return LoadedModel(f, merged, progress, name)


def _check_name(value: object) -> str | Path:
    if not isinstance(value, str | Path):
        raise UsageError(f"path_or_name: must be a path or a name, not {type(value).__name__}")
    return value


class LoadedModel(Model):
    """The model of a file, which owns its engine, its draft model and the process of its chat template."""

    engine: Engine

    def __init__(self, f: GGUF, options: Options, progress: Progress | None = None, name: str | Path = "") -> None:
        """`name` is that by which the model was found; its store may know the projector."""
        architectures.reject_speech_recognition(f)
        weight_loading.require_address_space(f)
        f = weight_loading.load_weights(f, options, progress)
        file_tokenizer = tokenizer.from_gguf(f)  # before the engine: its library aborts if memory runs out
        self._projector_path = projector_of(name or f.path, f.path, options)
        if options.mmproj:
            require_pair(f, self._projector_path)
        draft = open_draft_model(f, options)
        head = draft if draft and draft.architecture in DRAFT_HEADS else None
        extensions = Extensions(head, open_adapters(f, options), media=self._projector_path is not None)
        engine = Engine.load(f, options, progress, extensions, at_once=False)
        self._draft = load_draft_engine(draft, engine, options, progress) if draft and not head else None
        self.prefix_store = open_prefix_store(options)
        session = GenerationSession(engine, file_tokenizer, progress, self._draft, self.prefix_store)
        resources = SharedResources(f, file_tokenizer, engine, session, lambda: self._create_media_encoder(name))
        super().__init__(f, options, file_tokenizer, engine, session, resources)
        for warning in (*engine.warnings, *context_length_warnings(self), *draft_model_warnings(options)):
            warnings.warn(warning, stacklevel=3)
        self.progress = progress
        self._scheduler: Scheduler | None = None  # created by the first call of `concurrent`
        self._draft_scheduler: Scheduler | None = None  # the scheduler of the draft model
        self._concurrent: dict[int, ConcurrentModel] = {}

    def _create_media_encoder(self, name: str | Path) -> "MediaEncoder":
        from localinfer.model.media_encoder import MediaEncoder

        return MediaEncoder(
            self.file, name, self._projector_path, self.options, self.tokenizer, self.progress, self.n_ctx)

    def concurrent(self, slot: int) -> "Model":
        """Return the handle for a scheduler slot: see `Model.concurrent`."""
        from localinfer.runtime.scheduling.scheduler import Scheduler

        with self.engine.runner.page_table_lock:
            if slot not in self._concurrent:
                self._scheduler = self._scheduler or Scheduler(self.engine.runner)
                if self._draft:
                    self._draft_scheduler = self._draft_scheduler or Scheduler(self._draft.runner)
                self._concurrent[slot] = ConcurrentModel(self, self._scheduler, self._draft_scheduler)
            return self._concurrent[slot]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        """Close the model. Kernels that are still being compiled are waited for, unless there is an exception: they
        would be missing again the next time."""
        try:
            if kind is None:
                self.engine.compiled_graph.wait_for_kernels(self.progress)
        finally:
            super().__exit__(kind, error, traceback)

    def close(self) -> None:
        """Stop the threads, the chat template's process and the compilation of kernels."""
        self._session.end()
        if self.prefix_store is not None:
            self.prefix_store.close()
        self.engine.close()
        if self._draft is not None:
            self._draft.close()
        for scheduler in (self._scheduler, self._draft_scheduler):
            if scheduler is not None:
                scheduler.close()
        self._resources.close()


class ConcurrentModel(Model):
    """A model handle that is bound to one scheduler slot, as `Model.concurrent` returns it.

    It has a scheduled engine and a session. Everything else belongs to the shared model.
    """

    def __init__(self, model: LoadedModel, scheduler: "Scheduler", draft_scheduler: "Scheduler | None") -> None:
        from localinfer.runtime.scheduling.scheduled_engine import ScheduledEngine

        self._model, self._scheduled_engine = model, ScheduledEngine(scheduler)
        self._draft_engine = ScheduledEngine(draft_scheduler) if draft_scheduler else None
        engine = self._scheduled_engine
        session = GenerationSession(engine, model.tokenizer, model.progress, self._draft_engine, model.prefix_store)
        super().__init__(model.file, model.options, model.tokenizer, engine, session, model._resources)

    def concurrent(self, slot: int) -> Model:
        """Return the handle of the shared model for a scheduler slot: see `Model.concurrent`."""
        return self._model.concurrent(slot)

    def close(self) -> None:
        """End the current run and discard its KV cache. The shared model stays open."""
        self._session.end()
        self._scheduled_engine.close()
        if self._draft_engine is not None:
            self._draft_engine.close()

    def _start(self, prompt: list[int], options: Options, sampler: SamplerFunction | None,
               constraint: "Constraint | None", prefix_ids: Sequence[int] = ()) -> tuple[Stats, Iterator[Piece]]:
        stats, pieces = super()._start(prompt, options, sampler, constraint, prefix_ids)

        def pieces_then_idle() -> Iterator[Piece]:
            try:
                yield from pieces
            finally:
                self._scheduled_engine.mark_idle()
                if self._draft_engine is not None:
                    self._draft_engine.mark_idle()

        return stats, pieces_then_idle()


def open_prefix_store(options: Options) -> "PrefixStore | None":
    """Return the store of evaluated prompts, unless the options exclude it."""
    if not options.prefix_store or not options.prefix_store_size:
        return None
    from localinfer.prefix_store.store import PrefixStore

    return PrefixStore(paths.prefixes_dir(), int(options.prefix_store_size * 2**30), options)


def require_pair(f: GGUF, projector: Path | None) -> None:
    """Raise UsageError, UnsupportedError or LocalInferError unless a projector that the user names fits the model."""
    from localinfer.multimodal.projector_file import open_projector

    if projector is not None:
        open_projector(projector, f)


def open_draft_model(f: GGUF, options: Options) -> GGUF | None:
    """Open the draft model or draft head that the options name, if any, and check that it fits the model."""
    if not options.spec_draft_model:
        return None
    from localinfer.generation.speculative.draft_compatibility import require_same_vocabulary, require_spec_type

    draft = open_gguf(resolve.find(options.spec_draft_model))
    require_spec_type(draft, options.spec_type)
    require_same_vocabulary(draft, f)
    return draft


def load_draft_engine(draft: GGUF, engine: Engine, options: Options, progress: Progress | None) -> Engine:
    """Load the draft model; closes the engine of the model if that fails."""
    from localinfer.generation.speculative import draft_compatibility

    try:
        return draft_compatibility.load_draft_engine(draft, engine, options, progress)
    except BaseException:
        engine.close()
        raise


def draft_model_warnings(options: Options) -> list[str]:
    """Return a warning if only a draft model may draft tokens, but the options name none."""
    alone = parse_speculation_types(options.spec_type) == {"draft"} and not options.spec_draft_model
    message = f"spec_type {options.spec_type}: no draft model: set spec_draft_model (--spec-draft-model)"
    return [message] if alone else []


def context_length_warnings(model: Model) -> list[str]:
    """Return a warning if the context is longer than in training."""
    if model.n_ctx <= model.n_ctx_train:
        return []
    return [f"ctx_size {model.n_ctx}: the model was trained on {model.n_ctx_train} tokens; longer contexts degrade"]
