"""The web UI in a headless browser."""

import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from server_process import ServerProcess

sync_api = pytest.importorskip("playwright.sync_api", reason="there is no package playwright")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")

ANSWER = """# Title

Some **bold** and `code`, <img src=x onerror=alert(1)> and [a link](https://example.org) [not](javascript:alert(1)).

1. one
   - inner
2. two

```python
print("<b>")
```

| a | b |
|---|---|
| 1 | 2 |
"""

UNNAMED = """[...document.querySelectorAll('button, select, textarea, input')]
    .filter(each => !each.ariaLabel && !each.textContent.trim() && !each.labels?.length).map(each => each.outerHTML)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        options = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        opened = driver.chromium.launch(executable_path=BROWSER, args=options)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, server: ServerProcess) -> Iterator[Any]:
    """A new browser context at the server's page. Errors and requests to other hosts fail the test."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    opened.on("request", lambda request: request.url.startswith(server.url) or problems.append(request.url))
    opened.goto(server.url)
    opened.wait_for_selector("#model option", state="attached")
    yield opened
    context.close()
    assert problems == []


def set_max_tokens(page: Any, max_tokens: int) -> None:
    page.click("#open-settings")
    page.fill("[name=max_tokens]", str(max_tokens))
    page.click("#settings menu button:last-child")


def ask(page: Any, text: str) -> None:
    page.fill("#question", text)
    page.press("#question", "Enter")
    page.wait_for_selector("#send:visible")


def answer_with(page: Any, content: str, reasoning: str = "") -> None:
    """Mock the server's response to the following requests."""
    deltas = [{"reasoning_content": reasoning}, *({"content": piece} for piece in content.splitlines(keepends=True))]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))


def endless(route: Any) -> None:
    """Forward the request with `ignore_eos`, so that the model does not stop by itself."""
    route.continue_(post_data=json.dumps(route.request.post_data_json | {"ignore_eos": True}))


def texts(page: Any) -> list[str]:
    return [str(each) for each in page.locator("#messages .text").all_inner_texts()]


def test_response_is_shown_and_stored(page: Any) -> None:
    page.route("**/v1/chat/completions", endless)
    set_max_tokens(page, 12)
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
    set_max_tokens(page, 2)
    page.press("#question", "Enter")
    page.wait_for_selector("#send:visible")
    page.reload()
    assert page.input_value("#question") == ""


def test_edit_regenerate_and_previous_version(page: Any) -> None:
    set_max_tokens(page, 6)
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
    page.route("**/v1/chat/completions", endless)
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
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, "Hi")
    sent = request.value.post_data_json
    assert sent["messages"][0] == {"role": "system", "content": "Be brief"}
    assert (sent["temperature"], sent["max_tokens"], sent["model"]) == (0.5, 3, "tiny")


def test_markdown_is_rendered_without_scripts(page: Any) -> None:
    answer_with(page, ANSWER, "Let me see.\nYes.")
    ask(page, "Show")
    shown = page.locator(".assistant .text")
    assert shown.locator("h3").inner_text() == "Title"
    assert shown.locator("strong").inner_text() == "bold"
    assert shown.locator("p code").inner_text() == "code"
    assert shown.locator("ol > li").count() == 2
    assert shown.locator("ol ul li").inner_text() == "inner"
    assert shown.locator("td").all_inner_texts() == ["1", "2"]
    assert shown.locator("img").count() == 0
    assert [each.get_attribute("href") for each in shown.locator("a").all()] == ["https://example.org"]
    page.click("text=Copy >> nth=1")
    assert page.evaluate("navigator.clipboard.readText()") == 'print("<b>")'
    assert not page.locator("details > div").is_visible()
    page.click("summary")
    assert page.locator("details > div").inner_text() == "Let me see.\nYes."


RUNS = "globalThis.hacked = true"
HOSTILE = (
    f"<script>{RUNS}</script>",
    f"<img src=x onerror='{RUNS}'>",
    f"<svg/onload={RUNS}>",
    f"<details open ontoggle={RUNS}>x",
    f"<iframe srcdoc='<script>parent.{RUNS}</script>'></iframe>",
    "<base href=//example.org>",
    "<style>*{display:none}</style>",
    "<meta http-equiv=refresh content='0;url=https://example.org'>",
    "<form action=//example.org><input autofocus></form>",
    f"[a](javascript:{RUNS})",
    f"[a](JaVaScRiPt:{RUNS})",
    f"[a](java\tscript:{RUNS})",
    f"[a](&#106;avascript:{RUNS})",
    f"[a](data:text/html,<script>{RUNS}</script>)",
    f"[a](vbscript:{RUNS})",
    "[a](//example.org)",
    "[a](file:///etc/passwd)",
    f"![a](x onerror={RUNS})",
    "![a](https://example.org/track.png)",
    f"[<img src=x onerror={RUNS}>](https://example.org)",
    f'[a](https://example.org/" onclick="{RUNS})',
    f'https://example.org/"onmouseover={RUNS}',
    f"`<script>{RUNS}</script>`",
    f"```<script>{RUNS}</script>\n</code></pre><script>{RUNS}</script>\n```",
    f"# <script>{RUNS}</script>",
    f"> <img src=x onerror={RUNS}>",
    f"- <img src=x onerror={RUNS}>",
    f"| <img src=x onerror={RUNS}> | b |\n|---|---|\n| a |",
    f"**<img src=x onerror={RUNS}>**",
    f"\u2028<script>{RUNS}</script>",
    f"<scr\0ipt>{RUNS}</script>",
    f"{{{{constructor.{RUNS}}}}}",
)
ALLOWED = "A BLOCKQUOTE BUTTON CODE DIV EM H3 H4 H5 H6 HR LI OL P PRE S STRONG TABLE TBODY TD TH THEAD TR UL"
FOUND = """[...document.querySelectorAll('.assistant .text *')].map(each => [
    each.tagName, each.tagName == 'A' ? each.href : '',
    ...each.getAttributeNames().filter(name => name.startsWith('on'))])"""


def test_hostile_markdown_runs_nothing(page: Any) -> None:
    """Neither a response nor its reasoning becomes a script, a request or an element that Markdown does not have. The
    fixture checks that no rule of the security policy was needed."""
    for content in ("\n\n".join(HOSTILE), "\n".join(HOSTILE)):
        answer_with(page, content, content)
        ask(page, f"<img src=x onerror='{RUNS}'>")
        for tag, address, *handlers in page.evaluate(FOUND):
            assert tag in ALLOWED.split()
            assert address == "" or address.startswith(("https://", "http://", "mailto:"))
            assert handlers == []
        page.reload()
        page.wait_for_selector(".assistant .text > *")
        page.unroute("**/v1/chat/completions")
    assert page.evaluate("globalThis.hacked") is None


@pytest.mark.parametrize(
    "content",
    [
        "> " * 20_000 + "x",
        ">" * 20_000,
        "\n".join("  " * n + "- x" for n in range(1500)),
        "`" * 20_000,
        "*" * 20_000,
        "*_" * 10_000 + "x" + "_*" * 10_000,
        "[" * 20_000,
        "[a](" * 10_000,
        "~~" * 10_000,
        "# a" + " " * 20_000 + "b",
        "|" * 20_000 + "\n" + "|-" * 10_000,
        " " * 20_000 + "x",
        "**a" * 10_000,
        "`a``b" * 5_000,
    ],
    ids=lambda content: repr(content[:8]),
)
def test_no_markdown_stops_the_page(page: Any, content: str) -> None:
    """Deep nesting neither overflows the stack, nor does rendering take long."""
    answer_with(page, content)
    ask(page, "Show")
    assert page.locator(".assistant .text > *").count() > 0


def test_error_is_shown(page: Any) -> None:
    body = json.dumps({"error": {"message": "the server is busy"}})
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=200, body=f"data: {body}\n\n"))
    ask(page, "Hello")
    assert page.inner_text("[role=alert]") == "the server is busy"


def test_keyboard_and_screen_reader(page: Any) -> None:
    """Every control has an accessible name, and the message field is reachable by keyboard."""
    answer_with(page, "Yes.")
    ask(page, "Hello")
    assert page.evaluate(UNNAMED) == []
    assert page.inner_text("[role=status]") == "The response is complete."
    page.focus(".skip")
    page.keyboard.press("Enter")
    page.keyboard.type("x")
    assert page.input_value("#question") == "x"


def test_keyboard_focus_survives_rendering(page: Any) -> None:
    """The button that replaces a pressed button gets the focus."""
    focused = "document.activeElement.title || document.activeElement.id"
    answer_with(page, "Yes.")
    ask(page, "Hello")
    for selector, expected in (
        ("[title='Edit this message and resend']", ""),
        (".edit", "Edit this message and resend"),
        ("[title='Regenerate this response']", "Regenerate this response"),
        ("[title='Previous version']", "Next version"),
    ):
        page.focus(f"{selector} >> nth=-1")
        page.keyboard.press("Escape" if selector == ".edit" else "Enter")
        page.wait_for_selector("#send:visible")
        page.wait_for_function(f"({focused}) === {json.dumps(expected)}")
    page.fill("#question", "Once more")
    page.focus("#send")
    page.keyboard.press("Enter")
    page.wait_for_selector("#send:visible")
    page.wait_for_function(f"({focused}) === 'question'")


def test_dark_and_light_theme(page: Any) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(back)
    page.emulate_media(color_scheme="light")
    assert page.evaluate(back) != dark
    page.click("#theme")
    page.click("#theme")
    assert page.evaluate(back) == dark


def test_security_policy_forbids_other_hosts(server: ServerProcess) -> None:
    answer = server.get("/")
    assert answer.status == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert b"http://" not in answer.body
    assert b"https://" not in answer.body
    assert server.get("/page/../app.py").status == 404
