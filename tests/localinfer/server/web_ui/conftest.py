"""Fixtures: a headless browser at the page of a server, which all tests of this folder share."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_server import McpServer
from server_process import ServerProcess

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="session")
def mcp() -> Iterator[McpServer]:
    with McpServer() as served:
        yield served


@pytest.fixture(scope="session")
def server(tiny: Path, mcp: McpServer) -> Iterator[ServerProcess]:
    """A server whose page may connect to the MCP server."""
    with ServerProcess(tiny, "--queue", "2", "--parallel", "1", "--webui-connect", mcp.origin) as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser, which is closed before tests of other modules run: its event loop would be running in their thread."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="there is no package playwright")
    if BROWSER is None:
        pytest.skip("there is no Chromium")
    with sync_api.sync_playwright() as driver:
        options = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        opened = driver.chromium.launch(executable_path=BROWSER, args=options)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, server: ServerProcess, mcp: McpServer) -> Iterator[Any]:
    """A new browser context at the server's page. Errors and requests to other hosts fail the test, except
    lines with the texts in `page.expected_errors`.
    """
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], accept_downloads=True)
    opened = context.new_page()
    allowed = (server.url, mcp.origin, f"blob:{server.url}")
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.expected_errors = ()

    def on_console(line: Any) -> None:
        if line.type == "error" and not any(each in line.text for each in opened.expected_errors):
            problems.append(line.text)

    opened.on("console", on_console)
    opened.on("request", lambda request: request.url.startswith(allowed) or problems.append(request.url))
    opened.goto(server.url)
    opened.wait_for_selector("#model option", state="attached")
    yield opened
    context.close()
    assert problems == []
