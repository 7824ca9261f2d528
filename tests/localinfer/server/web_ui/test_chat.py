"""The web UI in a headless browser: a chat with the model."""

import json
from pathlib import Path
from typing import Any

from server_process import ServerProcess
from web_page import CHAT, answer_with, ask, endless, set_fields, texts

UNNAMED = """[...document.querySelectorAll('button, select, textarea, input')]
    .filter(each => !each.ariaLabel && !each.textContent.trim() && !each.labels?.length).map(each => each.outerHTML)"""


def test_response_is_shown_and_stored(page: Any) -> None:
    page.route(CHAT, endless)
    set_fields(page, max_tokens=12)
    ask(page, "Hello there")
    assert texts(page)[0] == "Hello there"
    assert "12 tokens" in page.inner_text("#messages li:last-child .tools")
    before = texts(page)
    page.reload()
    assert texts(page) == before
    assert page.inner_text("#conversations li:first-child").startswith("Hello there")
    page.click("#new")
    assert texts(page) == []


def test_unsent_text_survives_a_reload(page: Any) -> None:
    page.fill("#question", "not sent yet\nsecond line")
    page.reload()
    assert page.input_value("#question") == "not sent yet\nsecond line"
    set_fields(page, max_tokens=2)
    page.press("#question", "Enter")
    page.wait_for_selector("#send:visible")
    page.reload()
    assert page.input_value("#question") == ""


def test_edit_regenerate_and_previous_version(page: Any) -> None:
    set_fields(page, max_tokens=6)
    ask(page, "First")
    first = texts(page)
    page.click("text=Edit")
    page.fill(".edit", "Second")
    page.press(".edit", "Enter")
    page.wait_for_selector("#send:visible")
    assert texts(page)[0] == "Second"
    assert "2/2" in page.inner_text("#messages li:first-child .tools")
    page.click("text=Regenerate")
    page.wait_for_selector("#send:visible")
    assert "2/2" in page.inner_text("#messages li:last-child .tools")
    page.click("[aria-label='Previous version'] >> nth=0")
    assert texts(page) == first


def test_stop(page: Any, server: ServerProcess) -> None:
    page.route(CHAT, endless)
    page.fill("#question", "Go on")
    page.press("#question", "Enter")
    page.wait_for_selector(".assistant .text > *")
    page.keyboard.press("Escape")
    page.wait_for_selector("#send:visible")
    assert "stopped" in page.inner_text("#messages li:last-child .tools")
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status == 200


def test_settings_are_sent_and_stored(page: Any) -> None:
    page.click("#open-settings")
    page.fill("[name=system]", "Be brief")
    page.fill("[name=temperature]", "0.5")
    page.fill("[name=max_tokens]", "3")
    page.keyboard.press("Escape")
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    with page.expect_request(CHAT) as request:
        ask(page, "Hi")
    sent = request.value.post_data_json
    assert sent["messages"][0] == {"role": "system", "content": "Be brief"}
    assert (sent["temperature"], sent["max_tokens"], sent["model"]) == (0.5, 3, "tiny")


def test_error_is_shown(page: Any) -> None:
    body = json.dumps({"error": {"message": "the server is busy"}})
    page.route(CHAT, lambda route: route.fulfill(status=200, body=f"data: {body}\n\n"))
    ask(page, "Hello")
    assert page.inner_text("[role=alert]") == "the server is busy"


def test_server_that_ends(page: Any, tiny: Path) -> None:
    """The page says so in plain words, and goes on with the next server at the same address."""
    page.expected_errors = ("Failed to load resource",)
    with ServerProcess(tiny) as server:
        page.route(CHAT, lambda route: route.continue_(url=f"{server.url}/v1/chat/completions"))
        page.fill("#question", "Write")
        page.press("#question", "Enter")
        page.wait_for_selector(".assistant .text > *")
        server.process.kill()
        page.wait_for_selector("#send:visible")
    assert page.inner_text("[role=alert]").startswith("The connection to the server was lost")
    page.unroute(CHAT)
    page.route(CHAT, lambda route: route.abort())
    ask(page, "Still there?")
    assert page.inner_text("[role=alert] >> nth=1").startswith("The server cannot be reached.")
    answer_with(page, "Yes.")
    page.click("[title='Regenerate this response'] >> nth=-1")
    page.wait_for_selector("#send:visible")
    assert texts(page)[-1] == "Yes."


def test_response_without_its_end(page: Any) -> None:
    body = 'data: {"choices": [{"delta": {"content": "Half"}}]}\n\n'
    page.route(CHAT, lambda route: route.fulfill(content_type="text/event-stream", body=body))
    ask(page, "Hello")
    assert texts(page)[-1] == "Half"
    assert "was lost" in page.inner_text("[role=alert]")


def test_own_message_is_scrolled_into_view(page: Any) -> None:
    answer_with(page, "Line.\n\n" * 100)
    ask(page, "First")
    page.evaluate("document.querySelector('main').scrollTop = 0")
    ask(page, "Second")
    assert page.evaluate("(m => m.scrollHeight - m.scrollTop - m.clientHeight < 2)(document.querySelector('main'))")


def test_keyboard_and_screen_reader(page: Any) -> None:
    """Every control has an accessible name, and the message field is reachable by keyboard."""
    answer_with(page, "Yes.")
    ask(page, "Hello")
    assert page.evaluate(UNNAMED) == []
    assert page.inner_text("#status") == "The response is complete."
    page.focus(".skip")
    page.keyboard.press("Enter")
    page.keyboard.type("x")
    assert page.input_value("#question") == "x"


def test_keyboard_focus_survives_rendering(page: Any) -> None:
    """The button that replaces a pressed button gets the focus."""
    answer_with(page, "Yes.")
    ask(page, "Hello")
    for selector, expected in (
        ("[title='Edit this message and resend']", ".edit"),
        (".edit", "[title='Edit this message and resend']"),
        ("[title='Regenerate this response']", "[title='Regenerate this response']"),
        ("[title='Previous version']", "[title='Next version']"),
    ):
        page.focus(f"{selector} >> nth=-1")
        page.keyboard.press("Escape" if selector == ".edit" else "Enter")
        page.wait_for_selector("#send:visible")
        page.wait_for_selector(f"{expected}:focus")
    page.fill("#question", "Once more")
    page.focus("#send")
    page.keyboard.press("Enter")
    page.wait_for_selector("#send:visible")
    page.wait_for_selector("#question:focus")


def test_dark_and_light_theme(page: Any) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(back)
    page.emulate_media(color_scheme="light")
    assert page.evaluate(back) != dark
    page.click("#theme")
    page.click("#theme")
    assert page.evaluate(back) == dark


