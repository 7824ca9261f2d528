"""Answers with tool calls keep the token ids that the model generated."""

from collections.abc import Iterator
from typing import Any

import pytest
from tiny import tiny_llama

from localinfer.chat_template.conversation import Conversation
from localinfer.chat_template.prompt import Prompt, build_prompt
from localinfer.chat_template.template import ChatTemplate
from localinfer.chat_template.tool_call_tokens import MessageSpans
from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf

END, GENERATION = "{% endif %}{% endfor %}", "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CALL = '{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}'
CALLS = "{% for m in messages %}{% if m.tool_calls %}<|im_start|>assistant\n{{ m.content }}{% for c in m.tool_calls %}"
OTHERS = "{% endfor %}<|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n" + END + GENERATION
CHATML = CALLS + "<tool_call>\n" + CALL + "\n</tool_call>" + OTHERS
LLAMA = CALLS.replace("{{ m.content }}", "") + CALL + OTHERS
MISTRAL = (
    "{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}" + CALL + "{% endfor %}]"
    "<|im_end|>{% elif m.role == 'assistant' %}{{ m.content }}<|im_end|>{% elif m.role == 'tool' %}[TOOL_RESULTS]"
    "{{ m.content }}[/TOOL_RESULTS]{% else %}[INST]{{ m.content }}[/INST]" + END
)
GPT_OSS = (
    "{% for m in messages %}{% set c = (m.tool_calls or [{}])[0] %}<|start|>{% if m.tool_calls %}assistant to="
    "functions.{{ c.function.name }}<|channel|>commentary json<|message|>{{ c.function.arguments | tojson }}<|im_end|>"
    "{% elif m.role == 'tool' %}functions.now to=assistant<|channel|>commentary<|message|>{{ m.content }}<|end|>"
    "{% else %}{{ m.role }}<|message|>{{ m.content }}<|end|>" + END + "{% if add_generation_prompt %}<|start|>assistant"
    "{% endif %}"
)
FAMILIES = {  # template, and a tool call as a model may generate it
    "hermes": (CHATML, 'I look.\n<tool_call>{ "arguments": {"x":1}, "name": "now" }'),
    "llama": (LLAMA, 'I look. {"name" : "now"}'),
    "mistral": (MISTRAL, 'I look.[TOOL_CALLS]now[ARGS]{"x" : 1}'),
    "gpt-oss": (GPT_OSS, '<|channel|>commentary to=functions.now <|constrain|>json<|message|>I look. {"x" : 1}'),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return from_gguf(open_gguf(tiny_llama(tmp_path_factory.mktemp("written") / "llama.gguf")))


@pytest.fixture
def template(request: pytest.FixtureRequest) -> Iterator[ChatTemplate]:
    template = ChatTemplate(request.param, {"bos_token": "", "eos_token": "<|im_end|>"})
    yield template
    template.close()


def prompt_of(template: ChatTemplate, tokenizer: Tokenizer, *messages: Any, **more: Any) -> Prompt:
    question = {"role": "user", "content": "When?<|im_end|>"}
    return build_prompt(template, tokenizer, Conversation(messages=[question, *messages]), **more)


def call(ids: list[int], **more: Any) -> dict[str, Any]:
    calls = [{"id": "call00000", "type": "function", "function": {"name": "now", "arguments": {"x": 1}}}]
    return {"role": "assistant", "content": "I look.", "tool_calls": calls, "ids": ids, **more}


def one_by_one(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode each character as a token of its own, unlike any tokenizer."""
    return [id for char in text for id in tokenizer.encode(char, add_special=False, continues_text=True)]


def without_ids(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [{key: value for key, value in each.items() if "ids" not in key} for each in messages]


RESULT = {"role": "tool", "tool_call_id": "call00000", "name": "now", "content": "noon"}


@pytest.mark.parametrize(("template", "text"), FAMILIES.values(), ids=FAMILIES, indirect=["template"])
def test_each_family_keeps_the_generated_tokens(template: ChatTemplate, text: str, tokenizer: Tokenizer) -> None:
    ids = one_by_one(tokenizer, text)
    messages: list[dict[str, Any]] = []
    for _ in range(3):
        before = prompt_of(template, tokenizer, *messages)
        messages += [call(ids), RESULT]
        after = prompt_of(template, tokenizer, *messages)
        assert after.ids[: len(before.ids) + len(ids)] == before.ids + ids
        assert after.text.startswith(before.text + text + "<|im_end|>")
        assert after.text.endswith(prompt_of(template, tokenizer, *without_ids(*messages)).text[-40:])


@pytest.mark.parametrize("template", [CHATML], indirect=True)
def test_spans_are_cached_in_a_growing_conversation(
    template: ChatTemplate, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, counts, try_render = MessageSpans(), [], template.try_render
    monkeypatch.setattr(template, "try_render", lambda variables: (counts.append(1), try_render(variables))[1])
    messages: list[dict[str, Any]] = []
    for _ in range(4):
        messages += [call(one_by_one(tokenizer, HERMES)), RESULT]
        prompt = prompt_of(template, tokenizer, *messages, spans=spans)
        fresh, counts[:] = len(counts), []
        assert prompt == prompt_of(template, tokenizer, *messages)
        counts.clear()
    assert fresh <= 5
    changed = [call(one_by_one(tokenizer, HERMES.replace("1", "1.0"))), RESULT, *messages[2:]]
    assert prompt_of(template, tokenizer, *changed, spans=spans) == prompt_of(template, tokenizer, *changed)


HERMES = FAMILIES["hermes"][1]
WITH_REASONING = CHATML.replace("{{ m.content }}{%", "<think>{{ m.reasoning_content }}</think>{{ m.content }}{%")
LAST_MESSAGE_ONLY = CHATML.replace("{{ m.content }}{%", "{% if loop.last %}<think></think>{% endif %}{{ m.content }}{%")


@pytest.mark.parametrize(("template", "shown"), [(WITH_REASONING, True), (CHATML, False)], indirect=["template"])
def test_reasoning_is_kept_if_the_template_shows_it(template: ChatTemplate, shown: bool, tokenizer: Tokenizer) -> None:
    reasoning_ids, ids = one_by_one(tokenizer, "<think> Hm, hm. </think>\n"), one_by_one(tokenizer, HERMES)
    message = call(ids, reasoning_ids=reasoning_ids, reasoning_content="Hm, hm.")
    before, after = (prompt_of(template, tokenizer, *each) for each in ([], [message, RESULT]))
    expected = [*before.ids, *reasoning_ids, *ids]
    assert (after.ids[: len(expected)] == expected) == shown
    assert shown or after.text == prompt_of(template, tokenizer, *without_ids(message, RESULT)).text


@pytest.mark.parametrize("template", [LAST_MESSAGE_ONLY], indirect=True)
def test_texts_of_the_last_message_only(template: ChatTemplate, tokenizer: Tokenizer) -> None:
    assert HERMES in prompt_of(template, tokenizer, call(one_by_one(tokenizer, HERMES)), RESULT).text


ENDLESS = CHATML.replace("</tool_call>{% endfor %}<|im_end|>", "</tool_call>{% endfor %}")
COUNTING = "{{ messages | length }}" + CHATML
REQUIRES_GENERATION_PROMPT = "{% if not add_generation_prompt %}{{ raise_exception('never') }}{% endif %}" + CHATML


@pytest.mark.parametrize("template", [ENDLESS, COUNTING, REQUIRES_GENERATION_PROMPT], indirect=True)
def test_ambiguous_span(template: ChatTemplate, tokenizer: Tokenizer) -> None:
    message = call(one_by_one(tokenizer, HERMES))
    prompt = prompt_of(template, tokenizer, message, RESULT)
    assert prompt.text == prompt_of(template, tokenizer, *without_ids(message, RESULT)).text


@pytest.mark.parametrize("template", [CHATML], indirect=True)
def test_ids_that_do_not_match_the_message(template: ChatTemplate, tokenizer: Tokenizer) -> None:
    right = one_by_one(tokenizer, HERMES)
    text = prompt_of(template, tokenizer, *without_ids(call(right), RESULT)).text
    assert prompt_of(template, tokenizer, call(right), RESULT).text != text
    end = sorted(tokenizer.eog)
    for wrong in ([], one_by_one(tokenizer, "I look."), one_by_one(tokenizer, "now"), [*right, *end], [-1], [10**9]):
        assert prompt_of(template, tokenizer, call(wrong), RESULT).text == text
    assert prompt_of(template, tokenizer, call(right), RESULT, parse_special=True).text == text


def test_modified_session(tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{{ messages[1].content }}", {})
    broken: list[Any] = [{}, {"function": "now"}, {"function": {"name": 5}}]
    for each in broken:
        message = {**call(one_by_one(tokenizer, HERMES)), "tool_calls": [each]}
        assert prompt_of(template, tokenizer, message).text == "I look."


def test_template_timeout(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The template exceeds its time limit only for a prefix of the conversation."""
    slow = "{% if messages | length == 2 %}{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
    template = ChatTemplate(slow + "{% endif %}" + CHATML, {})
    monkeypatch.setattr("localinfer.chat_template.template.MAX_SECONDS", 0.2)
    message = call(one_by_one(tokenizer, HERMES))
    assert "<tool_call>\n{" in prompt_of(template, tokenizer, message, RESULT).text
