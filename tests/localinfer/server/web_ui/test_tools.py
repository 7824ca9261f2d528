"""Tools of MCP servers in the web UI: the settings, the user's consent, and the loop of calls and responses."""

from typing import Any

import pytest
from mcp_server import McpServer
from web_page import answer_with_deltas, ask, close_settings, tool_call

NO_CONNECTION = "no connection: the server is not running, or it does not allow this page's origin (CORS)"
DONE = [{"content": "It is 3."}]


def add_server(page: Any, url: str, token: str = "") -> str:
    """Add a server in the settings, and return the line that says what became of it."""
    page.click("#open-settings")
    page.wait_for_selector("#origins:not(:empty)")
    page.fill("#server-url", url)
    page.fill("#server-token", token)
    page.click("#add-server")
    page.wait_for_selector("#settings-message:not(:empty):not(:text('Connecting to'))")
    line = str(page.inner_text("#settings-message"))
    close_settings(page)
    return line


def send(page: Any, text: str) -> None:
    """Send a message without waiting for the response."""
    page.fill("#question", text)
    page.press("#question", "Enter")


@pytest.fixture
def tools(page: Any, mcp: McpServer) -> McpServer:
    """The MCP server, added in the settings."""
    mcp.requests.clear()
    assert add_server(page, mcp.url, "secret") == f"{mcp.url} has the tools add, wait."
    return mcp


def test_call_with_consent(page: Any, tools: McpServer) -> None:
    requests = answer_with_deltas(page, [tool_call("add", {"a": 1, "b": 2}), DONE])
    send(page, "Add 1 and 2")
    page.wait_for_selector(".consent")
    assert "tools/call" not in tools.methods()
    assert "add" in page.inner_text("#status")
    assert page.locator(".call pre").inner_text() == '{\n "a": 1,\n "b": 2\n}'
    page.click(".consent >> text=Run")
    page.wait_for_selector("text=It is 3.")
    page.wait_for_selector("#send:visible")
    [(call, headers)] = [each for each in tools.requests if each[0]["method"] == "tools/call"]
    assert call["params"] == {"name": "add", "arguments": {"a": 1, "b": 2}}
    assert headers["authorization"] == "Bearer secret"
    assert headers["mcp-protocol-version"] == "2025-06-18"
    assert [each["function"]["name"] for each in requests[0]["tools"]] == ["add", "wait"]
    called, result = requests[1]["messages"][-2:]
    assert called["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    assert result == {"role": "tool", "tool_call_id": "call1", "content": "3"}
    page.reload()
    page.wait_for_selector("text=It is 3.")
    assert page.inner_text(".call summary") == "Tool call: add (done)"
    assert not page.is_visible(".call pre")
    page.click(".call summary")
    assert page.locator(".call pre").last.inner_text() == "3"


def test_declined_call(page: Any, tools: McpServer) -> None:
    requests = answer_with_deltas(page, [tool_call("add", {"a": 1, "b": 2}), DONE])
    send(page, "Add")
    page.click(".consent >> text=Decline")
    page.wait_for_selector("text=It is 3.")
    assert "tools/call" not in tools.methods()
    assert requests[1]["messages"][-1]["content"] == "The user declined this call."
    assert page.inner_text(".call summary") == "Tool call: add (declined)"
    assert page.evaluate("document.activeElement.id") == "question"


def test_result_in_an_event_stream_that_is_an_error(page: Any, tools: McpServer) -> None:
    requests = answer_with_deltas(page, [tool_call("wait", {}), DONE])
    send(page, "Wait")
    page.click(".consent >> text=Run")
    page.wait_for_selector("text=It is 3.")
    assert requests[1]["messages"][-1]["content"] == "nothing happened"
    assert page.inner_text(".call summary") == "Tool call: wait (failed)"


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        (tool_call("gone", {}), "There is no tool gone."),
        (tool_call("add", "no object"), "The call failed: its arguments are not an object"),
        (tool_call("add", {"a": 1})[:1], "The call failed: its arguments are not an object"),
    ],
    ids=["unknown", "type", "syntax"],
)
def test_failed_calls_go_back_to_the_model(page: Any, tools: McpServer, deltas: Any, expected: str) -> None:
    requests = answer_with_deltas(page, [deltas, DONE])
    send(page, "Go")
    page.click(".consent >> text=Run")
    page.wait_for_selector("text=It is 3.")
    assert requests[1]["messages"][-1]["content"].startswith(expected)


def test_stop_instead_of_consent(page: Any, tools: McpServer) -> None:
    """The call is not run. A further message tells the model so, and Continue asks again."""
    requests = answer_with_deltas(page, [tool_call("add", {"a": 1, "b": 2}), DONE, DONE])
    send(page, "Add")
    page.wait_for_selector(".consent")
    page.keyboard.press("Escape")
    page.wait_for_selector("#send:visible")
    assert page.inner_text(".call summary") == "Tool call: add (not run)"
    page.reload()
    page.wait_for_selector(".call")
    page.click("[title='Go on with the calls of this response']")
    page.click(".consent >> text=Run")
    page.wait_for_selector("text=It is 3.")
    assert requests[1]["messages"][-1]["content"] == "3"
    page.wait_for_selector("#send:visible")


def test_message_after_a_call_that_was_not_run(page: Any, tools: McpServer) -> None:
    requests = answer_with_deltas(page, [tool_call("add", {"a": 1, "b": 2}), DONE])
    send(page, "Add")
    page.wait_for_selector(".consent")
    page.keyboard.press("Escape")
    page.wait_for_selector("#send:visible")
    ask(page, "Never mind")
    assert [each["role"] for each in requests[1]["messages"]] == ["user", "assistant", "tool", "user"]
    assert requests[1]["messages"][2]["content"] == "This call was not run."


def test_forgotten_session(page: Any, tools: McpServer) -> None:
    """A server that was restarted gets a new session, with one response of status 404 between."""
    answer_with_deltas(page, [tool_call("add", {"a": 1, "b": 2}), DONE])
    send(page, "Add")
    page.wait_for_selector(".consent")
    page.expected_errors = ("status of 404",)
    tools.forget()
    page.click(".consent >> text=Run")
    page.wait_for_selector("text=It is 3.")
    assert page.inner_text(".call summary") == "Tool call: add (done)"
    assert tools.methods().count("tools/call") == 2


def test_disabled_and_removed_servers_offer_no_tools(page: Any, tools: McpServer) -> None:
    requests = answer_with_deltas(page, [DONE])
    page.click("#open-settings")
    page.uncheck("#servers input")
    close_settings(page)
    ask(page, "Hi")
    assert "tools" not in requests[-1]
    page.click("#open-settings")
    page.check("#servers input")
    close_settings(page)
    ask(page, "Hi")
    assert len(requests[-1]["tools"]) == 2
    page.click("#open-settings")
    page.click(f"[aria-label='Remove {tools.url}']")
    close_settings(page)
    ask(page, "Hi")
    assert "tools" not in requests[-1]


def test_refused_addresses(page: Any, mcp: McpServer) -> None:
    assert add_server(page, "nonsense") == "The address of an MCP server looks like http://127.0.0.1:3000/mcp."
    origin = "http://192.0.2.1:99"
    assert add_server(page, f"{origin}/mcp") == (
        f"This page may not connect to {origin}. Start the server with --webui-connect {origin}"
    )
    page.click("#open-settings")
    assert page.locator("#servers li").count() == 0
    page.wait_for_selector(f"text=Addresses that are allowed: {mcp.origin}.")


@pytest.mark.parametrize(
    ("path", "console", "expected"),
    [
        ("/missing", "status of 404", "the server answers with status 404"),
        ("/closed", "CORS", NO_CONNECTION),
    ],
    ids=["missing", "closed"],
)
def test_servers_that_cannot_be_used(page: Any, mcp: McpServer, path: str, console: str, expected: str) -> None:
    """They are not added, and a line tells why."""
    page.expected_errors = (console, "net::ERR_FAILED")
    assert add_server(page, mcp.origin + path) == f"{mcp.origin}{path}: {expected}"
    page.click("#open-settings")
    assert page.locator("#servers li").count() == 0
    close_settings(page)


def test_server_that_is_gone_does_not_stop_the_chat(page: Any, tools: McpServer) -> None:
    page.expected_errors = ("net::ERR",)
    page.reload()
    page.route(tools.url, lambda route: route.abort())
    requests = answer_with_deltas(page, [DONE])
    ask(page, "Hi")
    assert "tools" not in requests[-1]
    assert page.inner_text("#notice span").startswith(f"{tools.url}: {NO_CONNECTION}")
