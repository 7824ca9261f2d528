"""`/v1/completions`: continue one or several texts."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.api_errors import field_error
from localinfer.server.http.json_output import EncodedEvent, EventTemplate
from localinfer.server.lease import Lease
from localinfer.server.openai.chat import MAX_LOGPROBS, MAX_TOKENS_FIELDS, response_head
from localinfer.server.openai.common_fields import CommonFields, parse_common_fields
from localinfer.server.openai.logprobs import completion_logprobs
from localinfer.server.openai.usage import prefill_timings, timings, usage
from localinfer.server.parallel_choices import run_choices
from localinfer.server.requests.infill_prompt import InfillPrompt
from localinfer.server.requests.mixed_prompts import MixedPrompt, is_token_id, require_vocabulary_ids
from localinfer.server.requests.prefill_reports import PrefillReport
from localinfer.server.requests.prompts import TextPrompt
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
    from localinfer.generation.pieces import Piece, Stats

DEFAULT_MAX_TOKENS = 16  # OpenAI's default
MAX_PROMPTS = 128


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A parsed request with `n` choices for each prompt."""

    common: CommonFields
    prompts: "list[TextPrompt | InfillPrompt]"
    logprobs: int | None
    echo: bool

    def choices(self) -> "list[tuple[int, TextPrompt | InfillPrompt, int]]":
        """Return (index of the choice, prompt, index among the choices of this prompt) for all choices."""
        n = self.common.n
        return [(n * i + k, prompt, k) for i, prompt in enumerate(self.prompts) for k in range(n)]


def parse_completion_request(fields: Fields) -> CompletionRequest:
    """Parse a request. Raises APIError (400) that names the first invalid field."""
    options = (
        {"n_predict": DEFAULT_MAX_TOKENS}
        | sampling_options(fields)
        | length_options(fields, *MAX_TOKENS_FIELDS)
        | constraint_options(fields)
    )
    logprobs = get_int(fields, "logprobs", 0, 0, MAX_LOGPROBS) if fields.get("logprobs") is not None else None
    if logprobs is not None:
        options |= {"logprobs": max(logprobs, 1)}
    prompts: list[TextPrompt | InfillPrompt] = list(parse_prompts(fields))
    if suffix := get(fields, "suffix", str, ""):
        prompts = [with_suffix(prompt, suffix) for prompt in prompts]
    return CompletionRequest(
        parse_common_fields(fields, options), prompts, logprobs, get(fields, "echo", bool, False)
    )


def with_suffix(prompt: TextPrompt | InfillPrompt, suffix: str) -> InfillPrompt:
    """Return the prompt for the text between a prompt, which must be a text, and a suffix."""
    if isinstance(prompt, InfillPrompt) or not isinstance(prompt.prompt, str):
        raise field_error("prompt", "must be a text if there is a suffix")
    return InfillPrompt(MixedPrompt((prompt.prompt,)), MixedPrompt((suffix,)), field_of=prompt.field_of)


def parse_prompts(fields: Fields) -> list[TextPrompt]:
    """Parse a prompt, which is a string or a list of token ids, or a list of prompts."""
    value = fields.get("prompt")
    is_single = isinstance(value, str) or (isinstance(value, list) and value and all(map(is_token_id, value)))
    prompts = [value] if is_single else value
    if not isinstance(prompts, list) or not 0 < len(prompts) <= MAX_PROMPTS:
        raise field_error("prompt", f"must be a string, a list of token ids, or a list of up to {MAX_PROMPTS} of these")
    for prompt in prompts:
        if not isinstance(prompt, str) and not (isinstance(prompt, list) and all(map(is_token_id, prompt))):
            raise field_error("prompt", "must be a string, a list of token ids, or a list of these")
        if not isinstance(prompt, str):
            require_vocabulary_ids(prompt, "prompt")
    return [TextPrompt(prompt, parse_special=True, field_of=constraint_fields(fields)) for prompt in prompts]


def prompt_text(prompt: TextPrompt | InfillPrompt, lease: Lease) -> str:
    if isinstance(prompt, InfillPrompt):
        return "".join(map(str, prompt.prefix.parts))
    return prompt.prompt if isinstance(prompt.prompt, str) else lease.model.detokenize(prompt.prompt, special=True)


async def chunks(completion_request: CompletionRequest, dispatcher: Dispatcher) -> AsyncGenerator[EncodedEvent, None]:
    all_stats: dict[int, Stats] = {}

    async def generate_choice(
        index: int, prompt: TextPrompt | InfillPrompt, choice_index: int, lease: Lease
    ) -> AsyncGenerator[EncodedEvent, None]:
        def event(text: str, pieces: "Sequence[Piece]" = (), finish_reason: str | None = None) -> dict[str, Any]:
            return head | {
                "choices": [choice_object(index, text, pieces, completion_request, lease, offset, finish_reason)]
            }

        offset = 0
        template = EventTemplate(event)
        common = completion_request.common
        is_plain = completion_request.logprobs is None and not common.timings_per_token
        async with lease.generate(
            prompt, common.options_for(choice_index), reports_prefill=common.reports_prefill
        ) as generation:
            text = prompt_text(prompt, lease) if completion_request.echo else ""
            yield event(text)
            offset = len(text)
            async for piece in generation.events:
                if isinstance(piece, PrefillReport):
                    yield event("") | {"prompt_progress": piece.as_fields(), "timings": prefill_timings(piece)}
                    continue
                times = {"timings": timings(generation.stats)} if common.timings_per_token else {}
                yield template.render(piece.text) if is_plain else event(piece.text, [piece]) | times
                offset += len(piece.text)
        all_stats[index] = generation.stats
        yield event("", [], generation.finish_reason) | {"timings": timings(generation.stats)}

    async with dispatcher.lease(completion_request.common.model_name, completion_request.common.slot) as lease:
        head = response_head("text_completion", lease, "cmpl-")
        head |= {"usage": None} if completion_request.common.include_usage else {}
        async with aclosing(
            run_choices([partial(generate_choice, *run) for run in completion_request.choices()], lease, dispatcher)
        ) as events:
            async for event_item in events:
                yield event_item
    if completion_request.common.include_usage:
        times = {"timings": timings(all_stats[max(all_stats)])}
        yield head | {"choices": [], "usage": total_usage(completion_request, all_stats)} | times


async def completion(completion_request: CompletionRequest, dispatcher: Dispatcher) -> dict[str, Any]:
    all_stats: dict[int, Stats] = {}

    async def generate_choice(
        index: int, prompt: TextPrompt | InfillPrompt, choice_index: int, lease: Lease
    ) -> AsyncGenerator[dict[str, Any], None]:
        async with lease.generate(prompt, completion_request.common.options_for(choice_index)) as generation:
            pieces = [piece async for piece in generation.pieces]
        echo = prompt_text(prompt, lease) if completion_request.echo else ""
        text = echo + "".join(piece.text for piece in pieces)
        all_stats[index] = generation.stats
        yield choice_object(index, text, pieces, completion_request, lease, len(echo), generation.finish_reason)

    async with dispatcher.lease(completion_request.common.model_name, completion_request.common.slot) as lease:
        runs = completion_request.choices()
        choices = [
            each async for each in run_choices([partial(generate_choice, *run) for run in runs], lease, dispatcher)
        ]
        counts = {"usage": total_usage(completion_request, all_stats), "timings": timings(all_stats[len(runs) - 1])}
        head = response_head("text_completion", lease, "cmpl-")
        return head | {"choices": sorted(choices, key=itemgetter("index"))} | counts


def choice_object(
    index: int, text: str, pieces: "Sequence[Piece]", completion_request: CompletionRequest, lease: Lease, offset: int,
    finish_reason: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    with_logprobs, n_top = [piece for piece in pieces if piece.logprob is not None], completion_request.logprobs
    logprobs = (
        None if n_top is None or not with_logprobs else completion_logprobs(with_logprobs, n_top, lease.model, offset)
    )
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def total_usage(completion_request: CompletionRequest, all_stats: "Mapping[int, Stats]") -> dict[str, Any]:
    """Sum up the usage of all choices, given by index. The tokens of each prompt count once."""
    n = completion_request.common.n
    in_order = [all_stats[index] for index in sorted(all_stats)]
    usages = [usage(in_order[start : start + n]) for start in range(0, len(in_order), n)]
    details = {"cached_tokens": sum(each["prompt_tokens_details"]["cached_tokens"] for each in usages)}
    sums = {name: sum(each[name] for each in usages) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return sums | {"prompt_tokens_details": details}
