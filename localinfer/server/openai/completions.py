"""`/v1/completions`: texts in, what comes after them out."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from localinfer.server.choices import together
from localinfer.server.desk import Desk, Seat, Text
from localinfer.server.fields import Fields, count, form_of, get, length_of, options_of
from localinfer.server.openai.chat import LENGTH, MOST_LOGPROBS, head_of
from localinfer.server.openai.counts import timings, usage
from localinfer.server.openai.probabilities import of_text
from localinfer.server.openai.requests import Common, common
from localinfer.server.problems import bad
from localinfer.server.written import Pattern, Written

if TYPE_CHECKING:
    from localinfer.generation.pieces import Piece, Stats

USUAL_LENGTH = 16  # tokens, where a request says nothing: OpenAI's
MOST_PROMPTS = 128


@dataclass(frozen=True, slots=True)
class Question:
    common: Common
    prompts: list[Text]
    logprobs: int | None
    echo: bool

    def runs(self) -> list[tuple[int, Text, int]]:
        """(number of the choice, prompt, which of its choices)"""
        n = self.common.n
        return [(n * i + k, prompt, k) for i, prompt in enumerate(self.prompts) for k in range(n)]


def question_of(fields: Fields) -> Question:
    if fields.get("suffix"):
        raise bad("suffix", "filling gaps is not supported")
    options = {"n_predict": USUAL_LENGTH} | options_of(fields) | length_of(fields, *LENGTH) | form_of(fields)
    logprobs = count(fields, "logprobs", 0, 0, MOST_LOGPROBS) if fields.get("logprobs") is not None else None
    if logprobs is not None:
        options |= {"logprobs": max(logprobs, 1)}
    return Question(common(fields, options), prompts_of(fields), logprobs, get(fields, "echo", bool, False))


def prompts_of(fields: Fields) -> list[Text]:
    """A text or its tokens, or a list of these."""
    given = fields.get("prompt")
    is_one = isinstance(given, str) or (isinstance(given, list) and given and all(map(is_id, given)))
    prompts = [given] if is_one else given
    if not isinstance(prompts, list) or not 0 < len(prompts) <= MOST_PROMPTS:
        raise bad("prompt", f"must be a text, a list of tokens, or a list of up to {MOST_PROMPTS} of these")
    for prompt in prompts:
        if not isinstance(prompt, str) and not (isinstance(prompt, list) and all(map(is_id, prompt))):
            raise bad("prompt", "must be a text, a list of tokens, or a list of these")
    return [Text(prompt) for prompt in prompts]


def is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def shown(prompt: Text, seat: Seat) -> str:
    return prompt.prompt if isinstance(prompt.prompt, str) else seat.model.detokenize(prompt.prompt, special=True)


async def chunks(question: Question, desk: Desk) -> AsyncGenerator[Written, None]:
    all_stats: dict[int, Stats] = {}

    async def answer(index: int, prompt: Text, nth: int, seat: Seat) -> AsyncGenerator[Written, None]:
        def event(text: str, pieces: "Sequence[Piece]" = (), finish_reason: str | None = None) -> dict[str, Any]:
            return head | {"choices": [choice(index, text, pieces, question, seat, offset, finish_reason)]}

        offset = 0
        plain = Pattern(event)
        async with seat.run(prompt, question.common.options_for(nth)) as run:
            text = shown(prompt, seat) if question.echo else ""
            yield event(text)
            offset = len(text)
            async for piece in run.pieces:
                yield plain.filled(piece.text) if question.logprobs is None else event(piece.text, [piece])
                offset += len(piece.text)
        all_stats[index] = run.stats
        yield event("", [], run.finish_reason) | {"timings": timings(run.stats)}

    async with desk.seat(question.common.wanted) as seat:
        head = head_of("text_completion", seat, "cmpl-")
        head |= {"usage": None} if question.common.include_usage else {}
        async with aclosing(together([partial(answer, *run) for run in question.runs()], seat, desk)) as told:
            async for part in told:
                yield part
    if question.common.include_usage:
        yield head | {"choices": [], "usage": sum_of(question, all_stats)}


async def completion(question: Question, desk: Desk) -> dict[str, Any]:
    all_stats: dict[int, Stats] = {}

    async def answer(index: int, prompt: Text, nth: int, seat: Seat) -> AsyncGenerator[dict[str, Any], None]:
        async with seat.run(prompt, question.common.options_for(nth)) as run:
            pieces = [piece async for piece in run.pieces]
        before = shown(prompt, seat) if question.echo else ""
        text = before + "".join(piece.text for piece in pieces)
        all_stats[index] = run.stats
        yield choice(index, text, pieces, question, seat, len(before), run.finish_reason)

    async with desk.seat(question.common.wanted) as seat:
        runs = question.runs()
        choices = [each async for each in together([partial(answer, *run) for run in runs], seat, desk)]
        counts = {"usage": sum_of(question, all_stats), "timings": timings(all_stats[len(runs) - 1])}
        head = head_of("text_completion", seat, "cmpl-")
        return head | {"choices": sorted(choices, key=itemgetter("index"))} | counts


def choice(
    index: int, text: str, pieces: "Sequence[Piece]", question: Question, seat: Seat, offset: int,
    finish_reason: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    told, most = [piece for piece in pieces if piece.logprob is not None], question.logprobs
    logprobs = None if most is None or not told else of_text(told, most, seat.model, offset)
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def sum_of(question: Question, all_stats: "Mapping[int, Stats]") -> dict[str, Any]:
    """Each prompt counts once; `all_stats` by the numbers of choices."""
    n = question.common.n
    in_order = [all_stats[index] for index in sorted(all_stats)]
    parts = [usage(in_order[start : start + n]) for start in range(0, len(in_order), n)]
    details = {"cached_tokens": sum(part["prompt_tokens_details"]["cached_tokens"] for part in parts)}
    sums = {name: sum(part[name] for part in parts) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return sums | {"prompt_tokens_details": details}
