"""The request fields of `/completion` and `/infill`, and the runs that they ask for."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from localinfer.options import Options, merge
from localinfer.server.http.api_errors import field_error
from localinfer.server.llama_cpp.generation_settings import generation_settings
from localinfer.server.llama_cpp.token_probabilities import SampledProbabilities, model_probabilities
from localinfer.server.openai.common_fields import MAX_CHOICES
from localinfer.server.requests.mixed_prompts import is_single, parse_prompts
from localinfer.server.requests.request_fields import (
    Fields,
    constraint_fields,
    constraint_options,
    get,
    get_int,
    length_options,
    sampling_options,
)

if TYPE_CHECKING:
    from localinfer.generation.pieces import Piece
    from localinfer.generation.result import GenerationStream
    from localinfer.model import Model

MAX_PROBABILITIES = 1000
MAX_MILLISECONDS = 10**9
LENGTH_FIELDS = ("n_predict", "max_tokens")


class IdPrompt(Protocol):
    """A prompt whose token ids depend on the model."""

    def ids(self, model: "Model") -> list[int]:
        """Return the token ids. Raises UsageError or UnsupportedError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """A parsed request. `n_probs` is the number of alternatives whose probabilities are returned, 0 for none."""

    model_name: str | None
    prompts: Sequence[IdPrompt]
    is_list: bool  # whether the prompts are given as a list, so that the response is one, too
    options: Mapping[str, Any]
    n: int
    is_streamed: bool
    slot: int
    n_probs: int
    post_sampling: bool
    return_tokens: bool
    reports_prefill: bool
    timings_per_token: bool
    response_fields: tuple[str, ...]
    is_prefill_only: bool
    line_rules: "LineRules"
    field_of: Mapping[str, str]  # see `dispatcher.Prompt`

    def runs(self) -> "list[CompletionRun]":
        """Return the runs of all prompts, `n` for each one."""
        numbered = [(prompt, choice) for prompt in self.prompts for choice in range(self.n)]
        return [CompletionRun(self, index, prompt, choice) for index, (prompt, choice) in enumerate(numbered)]


@dataclass(frozen=True, slots=True)
class LineRules:
    """When a text ends early, after its first line: `n_indent` ends it before a line that is indented less,
    `milliseconds` after that time. 0 disables a rule. Both serve completion in editors.
    """

    n_indent: int = 0
    milliseconds: int = 0

    def end(self, text: str, seconds: float) -> int | None:
        """Return the length that remains of the text if it ends now, else None."""
        newline = text.rfind("\n")
        if newline < 0:
            return None
        line = text[newline + 1 :]
        indentation = len(line) - len(line.lstrip(" \t"))
        if len(line.lstrip(" \t")) > 0 and indentation < self.n_indent:
            return newline + 1 + indentation
        return len(text) if 0 < self.milliseconds < 1000 * seconds else None


def parse_completion_request(fields: Fields) -> CompletionRequest:
    """Parse the fields of `/completion`. Raises APIError (400) that names the first invalid field."""
    prompt = fields.get("prompt")
    prompts = parse_prompts(prompt, "prompt", allows_media=True)
    return parse_common_request(fields, prompts, is_list=not is_single(prompt))


def parse_common_request(fields: Fields, prompts: Sequence[IdPrompt], *, is_list: bool) -> CompletionRequest:
    """Parse the fields that `/completion` and `/infill` share."""
    n_probs = get_int(fields, "n_probs", get_int(fields, "logprobs", 0, 0, MAX_PROBABILITIES), 0, MAX_PROBABILITIES)
    post_sampling = get(fields, "post_sampling_probs", bool, False)
    is_prefill_only = any(fields.get(name) == 0 for name in LENGTH_FIELDS)
    length = {"n_predict": 1} if is_prefill_only else length_options(unlimited_as_minus_one(fields), *LENGTH_FIELDS)
    options = sampling_options(fields) | length | constraint_options(fields)
    if n_probs and not post_sampling:
        options |= {"logprobs": n_probs}
    response_fields = get(fields, "response_fields", list, [])
    if not all(isinstance(name, str) for name in response_fields):
        raise field_error("response_fields", "must be a list of names")
    return CompletionRequest(
        model_name=get(fields, "model", str, "") or None,
        prompts=prompts,
        is_list=is_list,
        options=options,
        n=get_int(fields, "n_cmpl", get_int(fields, "n", 1, 1, MAX_CHOICES), 1, MAX_CHOICES),
        is_streamed=get(fields, "stream", bool, False),
        slot=get(fields, "id_slot", int, -1),
        n_probs=n_probs,
        post_sampling=post_sampling,
        return_tokens=get(fields, "return_tokens", bool, False),
        reports_prefill=get(fields, "return_progress", bool, False),
        timings_per_token=get(fields, "timings_per_token", bool, False),
        response_fields=tuple(response_fields),
        is_prefill_only=is_prefill_only,
        line_rules=LineRules(
            get_int(fields, "n_indent", 0, 0, 1000), get_int(fields, "t_max_predict_ms", 0, -1, MAX_MILLISECONDS)
        ),
        field_of=constraint_fields(fields),
    )


def unlimited_as_minus_one(fields: Fields) -> Fields:
    """Replace llama.cpp's -2, which stands for the rest of the context, by -1: no limit."""
    return {name: -1 if name in LENGTH_FIELDS and value == -2 else value for name, value in fields.items()}


@dataclass(slots=True)
class CompletionRun:
    """One choice of a request; a prompt for `Lease.generate`. What follows `choice` is known once it has begun.
    `ends_with_context` tells whether the context ends the text at the latest, before the limit of the request.
    """

    request: CompletionRequest
    index: int
    prompt: IdPrompt
    choice: int
    ids: list[int] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    sampled: SampledProbabilities | None = None
    ends_with_context: bool = False

    @property
    def field_of(self) -> Mapping[str, str]:
        return self.request.field_of

    def begin(self, model: "Model", options: Mapping[str, Any]) -> "GenerationStream":
        """Start the run: see `Prompt.begin`."""
        self.ids = self.prompt.ids(model)
        merged: Options = merge(dict(options), asdict(model.options))
        self.settings = generation_settings(merged, model) | self._request_settings
        if self.request.n_probs and self.request.post_sampling:
            self.sampled = SampledProbabilities(model.sampler(**options), self.request.n_probs)
        return model.stream(self.ids, sampler=self.sampled, **{**options, **self._context_limit(merged, model.n_ctx)})

    def _context_limit(self, options: Options, n_ctx: int) -> dict[str, int]:
        """Return the limit by which prompt and text have `n_ctx` tokens together, as in llama.cpp's server. Without it,
        there would be one more, which need not be evaluated.
        """
        n_free = n_ctx - len(self.ids)
        is_limited = 0 < options.n_predict <= n_free or options.ctx_policy == "ring"
        self.ends_with_context = n_free > 0 and not is_limited
        return {"n_predict": n_free} if self.ends_with_context else {}

    @property
    def options(self) -> dict[str, Any]:
        """The options of this choice. Each choice has its own seed, so that they differ."""
        seed = self.request.options.get("seed", -1)
        own_seed = {"seed": (seed + self.choice) % 2**64} if self.choice and seed >= 0 else {}
        return {**self.request.options, **own_seed}

    @property
    def _request_settings(self) -> dict[str, Any]:
        request = self.request
        return {
            "stream": request.is_streamed,
            "n_probs": request.n_probs,
            "post_sampling_probs": request.post_sampling,
            "timings_per_token": request.timings_per_token,
            "t_max_predict_ms": request.line_rules.milliseconds,
            "n_indent": request.line_rules.n_indent,
            **({"n_predict": 0, "max_tokens": 0} if request.is_prefill_only else {}),
        }

    def probabilities(self, piece: "Piece", n_before: int, model: "Model") -> dict[str, Any]:
        """Return the field with the probabilities of a piece behind `n_before` generated tokens."""
        if not self.request.n_probs:
            return {}
        entry = (
            self.sampled.describe(len(self.ids) + n_before, model)
            if self.sampled
            else model_probabilities(piece, self.request.n_probs, model)
        )
        return {"completion_probabilities": [entry] if entry else []}
