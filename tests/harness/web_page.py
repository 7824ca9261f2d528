"""What tests do on the page of the web UI, with playwright."""

import json
from collections.abc import Sequence
from typing import Any

CHAT = "**/v1/chat/completions"


def set_fields(page: Any, **fields: object) -> None:
    """Fill fields of the settings."""
    page.click("#open-settings")
    for name, value in fields.items():
        page.fill(f"#settings [name={name}]", str(value))
    close_settings(page)


def close_settings(page: Any) -> None:
    page.click("#settings menu button:last-child")


def ask(page: Any, text: str) -> None:
    """Send a message and wait until the response is complete."""
    page.fill("#question", text)
    page.press("#question", "Enter")
    page.wait_for_selector("#send:visible")


def answer_with(page: Any, *contents: str, reasoning: str = "") -> None:
    """Mock the server's response to the following requests. Of several contents, each request gets the next one."""
    bodies = [
        [{"reasoning_content": reasoning}, *({"content": piece} for piece in content.splitlines(keepends=True))]
        for content in contents
    ]
    answer_with_deltas(page, bodies)


def answer_with_deltas(page: Any, bodies: Sequence[Sequence[dict[str, Any]]]) -> list[Any]:
    """Mock responses of these deltas; the last one is repeated. Return the list of the requests to come."""
    requests: list[Any] = []

    def respond(route: Any) -> None:
        requests.append(route.request.post_data_json)
        deltas = bodies[min(len(requests), len(bodies)) - 1]
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    page.unroute(CHAT)
    page.route(CHAT, respond)
    return requests


def tool_call(name: str, arguments: object, id: str = "call1") -> list[dict[str, Any]]:
    """Return the deltas of a call, whose arguments come in two parts."""
    text = json.dumps(arguments)
    first = {"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": text[:3]}}
    return [
        {"tool_calls": [first]},
        {"tool_calls": [{"index": 0, "function": {"arguments": text[3:]}}]},
    ]


def endless(route: Any) -> None:
    """Forward the request with `ignore_eos`, so that the model does not stop by itself."""
    route.continue_(post_data=json.dumps(route.request.post_data_json | {"ignore_eos": True}))


def texts(page: Any) -> list[str]:
    return [str(each) for each in page.locator("#messages .text").all_inner_texts()]


def press(page: Any, title: str, nth: int = -1) -> None:
    """Press a button of a message; by default, of the last one that has it."""
    page.click(f"#messages [title='{title}'] >> nth={nth}")


def attach(page: Any, *files: dict[str, Any]) -> None:
    """Choose files: {name, mimeType, buffer}."""
    with page.expect_file_chooser() as chooser:
        page.click("#attach")
    chooser.value.set_files(list(files))


def file(name: str, content: bytes, kind: str = "") -> dict[str, Any]:
    return {"name": name, "mimeType": kind, "buffer": content}
