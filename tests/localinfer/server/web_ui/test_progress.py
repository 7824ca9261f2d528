"""What the web UI tells while a prompt is read, while the model responds, and about the context."""

import json
from typing import Any

import pytest
from web_page import CHAT, ask, set_fields

# The response to the next request comes in pieces, which `push` adds.
STREAM = """(() => {
    const original = window.fetch;
    window.fetch = (address, options) => {
        if (address !== '/v1/chat/completions') return original(address, options);
        window.sent = JSON.parse(options.body);
        const encoder = new TextEncoder();
        const body = new ReadableStream({ start(controller) {
            const send = text => controller.enqueue(encoder.encode(`data: ${text}\\n\\n`));
            window.push = chunk => send(JSON.stringify(chunk));
            window.finish = () => { send('[DONE]'); controller.close(); };
        } });
        return Promise.resolve(new Response(body));
    };
})()"""


def chunk(delta: object, **more: object) -> dict[str, object]:
    finish_reason = more.pop("finish_reason", None)
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}], **more}


def timings(prompt: int, predicted: int) -> dict[str, object]:
    return {"prompt_n": prompt, "cache_n": 0, "predicted_n": predicted, "predicted_per_second": 12.345}


def push(page: Any, *chunks: object) -> None:
    for each in chunks:
        page.evaluate("chunk => window.push(chunk)", each)


def test_prompt_progress_and_speed(page: Any) -> None:
    page.evaluate(STREAM)
    page.fill("#question", "Hello")
    page.press("#question", "Enter")
    page.wait_for_selector(".writing >> text=Waiting for the first token")
    assert page.evaluate("[sent.return_progress, sent.timings_per_token]") == [True, True]
    progress = {"total": 2000, "cache": 0, "processed": 500, "time_ms": 100}
    push(page, chunk({}, prompt_progress=progress, timings=timings(500, 0)))
    page.wait_for_selector("text=Reading the prompt: 500 of 2,000 tokens")
    bar = page.locator("progress")
    assert [bar.get_attribute(name) for name in ("value", "max")] == ["500", "2000"]
    push(page, chunk({}, prompt_progress=progress | {"processed": 2000}, timings=timings(2000, 0)))
    page.wait_for_selector("progress", state="detached")
    push(page, chunk({"content": "Yes"}, timings=timings(2000, 7)))
    page.wait_for_selector("text=7 tokens, 12.3 tokens/s")
    push(page, chunk({}, finish_reason="length", timings=timings(2000, 8)))
    page.evaluate("window.finish()")
    page.wait_for_selector("#send:visible")
    assert page.inner_text(".assistant .note") == "8 tokens, 12.3 tokens/s, length limit reached"


def test_context_of_a_real_answer(page: Any) -> None:
    set_fields(page, max_tokens=3)
    ask(page, "Hello")
    page.wait_for_selector("#context:visible")
    used, length = page.inner_text("#context-text").removesuffix(" tokens of context").split(" of ")
    assert length == "16,384"
    assert 3 < int(used) < 200
    page.click("#new")
    page.wait_for_selector("#context", state="hidden")


@pytest.mark.parametrize(("used", "is_near_end"), [(10_000, False), (14_000, True)])
def test_warning_near_the_end_of_the_context(page: Any, used: int, is_near_end: bool) -> None:
    body = f"data: {json.dumps(chunk({}, finish_reason='stop', timings=timings(used - 1, 1)))}\n\ndata: [DONE]\n\n"
    page.route(CHAT, lambda route: route.fulfill(content_type="text/event-stream", body=body))
    ask(page, "Hello")
    page.wait_for_selector("#context:visible")
    assert page.inner_text("#context-text").startswith(f"{used:,} of 16,384 tokens of context")
    assert ("nearly full" in page.inner_text("#context-text")) == is_near_end
    assert page.locator("#context.near-end").count() == is_near_end
    assert page.evaluate("document.getElementById('context-bar').value") == used


def test_prompt_that_does_not_fit_is_reported(page: Any) -> None:
    """The server's line is shown, and the conversation goes on after the message is deleted."""
    page.expected_errors = ("status of 400",)
    page.fill("#question", "word " * 20_000)
    page.click("#send")
    page.wait_for_selector("[role=alert].problem:visible")
    assert "16384" in page.inner_text("#messages .problem")


def test_opening_a_conversation_loads_no_model(page: Any) -> None:
    """The page asks for no properties, which would load the model; the context length comes with the list of models."""
    set_fields(page, max_tokens=2)
    ask(page, "Hello")
    page.wait_for_selector("#context:visible")
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    body = json.dumps({"data": [{"id": "tiny"}]})
    page.route("**/v1/models", lambda route: route.fulfill(content_type="application/json", body=body))
    page.reload()
    page.wait_for_selector("#context:visible")
    assert page.inner_text("#context-text").endswith(" tokens of context")
    assert "of 16,384" not in page.inner_text("#context-text")
    assert not page.is_visible("#context-bar")
    assert not any("/props" in url for url in requested)
