"""Settings, presets, models and keyboard shortcuts of the web UI."""

import json
from pathlib import Path
from typing import Any

import pytest
from web_page import answer_with, answer_with_deltas, ask, close_settings, file, set_fields

STRICT = {"system": "Be exact", "temperature": "0"}
PRESETS = {"format": "localinfer presets", "version": 1, "presets": {"Strict": STRICT}}
SHOWN = "document.activeElement.id"


def import_presets(page: Any, content: bytes) -> str:
    with page.expect_file_chooser() as chooser:
        page.click("#import-presets")
    chooser.value.set_files([file("file.json", content)])
    page.wait_for_selector("#settings-message:not(:empty)")
    return str(page.inner_text("#settings-message"))


def test_presets(page: Any) -> None:
    page.click("#open-settings")
    page.fill("[name=system]", "Be a poet")
    page.fill("[name=temperature]", "1.5")
    page.fill("#preset-name", "Poet")
    page.press("#preset-name", "Enter")
    page.fill("[name=system]", "")
    page.fill("[name=temperature]", "")
    page.fill("[name=seed]", "7")
    page.fill("#preset-name", "Plain")
    page.click("#save-preset")
    page.reload()
    requests = answer_with_deltas(page, [[{"content": "Yes."}]])
    for name, system, temperature, seed in (("Poet", "Be a poet", 1.5, None), ("Plain", None, None, 7)):
        page.click("#open-settings")
        page.select_option("#preset", name)
        close_settings(page)
        ask(page, "Hi")
        first = requests[-1]["messages"][0]
        assert (first["content"] if first["role"] == "system" else None) == system
        assert (requests[-1].get("temperature"), requests[-1].get("seed")) == (temperature, seed)
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("#open-settings")
    page.click("#remove-preset")
    assert page.locator("#preset option").all_inner_texts() == ["(none)", "Poet"]


def test_presets_are_exported_and_imported(page: Any) -> None:
    page.click("#open-settings")
    assert import_presets(page, json.dumps(PRESETS).encode()) == "file.json: 1 preset imported"
    page.select_option("#preset", "Strict")
    assert (page.input_value("[name=system]"), page.input_value("[name=temperature]")) == ("Be exact", "0")
    with page.expect_download() as download:
        page.click("#export-presets")
    exported = Path(download.value.path()).read_bytes()
    assert import_presets(page, exported) == "file.json: 1 preset imported"
    assert page.locator("#preset option").all_inner_texts() == ["(none)", "Strict", "Strict (2)"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "has no presets"),
        (PRESETS | {"presets": {"A": 1}}, "has an invalid preset"),
        (PRESETS | {"presets": {"Good": {}, "A": {"temperature": "hot"}}}, "A: temperature is invalid"),
        (PRESETS | {"presets": {"A": {"system": 1}}}, "A: system is invalid"),
    ],
)
def test_refused_presets(page: Any, value: object, problem: str) -> None:
    page.click("#open-settings")
    assert import_presets(page, json.dumps(value).encode()) == f"file.json: {problem}"
    assert page.locator("#preset option").count() == 1


def test_preset_needs_a_name(page: Any) -> None:
    page.click("#open-settings")
    page.click("#save-preset")
    assert page.inner_text("#settings-message") == "A preset needs a name."


def test_model_choice(page: Any) -> None:
    """The chosen model is used, and remembered."""
    body = json.dumps({"data": [{"id": "first"}, {"id": "second"}]})
    page.route("**/v1/models", lambda route: route.fulfill(content_type="application/json", body=body))
    page.reload()
    page.wait_for_selector("#model option >> nth=1", state="attached")
    page.select_option("#model", "second")
    page.reload()
    page.wait_for_selector("#model option >> nth=1", state="attached")
    requests = answer_with_deltas(page, [[{"content": "Yes."}]])
    ask(page, "Hi")
    assert requests[-1]["model"] == "second"


def test_page_waits_while_the_server_loads_its_model(page: Any) -> None:
    loading = json.dumps({"error": {"message": "Loading model"}})
    page.expected_errors = ("status of 503",)
    count = iter(range(10))

    def busy(route: Any) -> None:
        if next(count) < 1:
            route.fulfill(status=503, content_type="application/json", body=loading)
        else:
            route.fallback()

    page.route("**/v1/models", busy)
    page.click("#open-settings")
    close_settings(page)  # asks for the models again
    page.wait_for_selector("text=The server is loading the model")
    page.wait_for_selector("#notice", state="hidden")
    assert page.locator("#model option").all_inner_texts() == ["tiny"]


def test_shortcuts(page: Any) -> None:
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    assert page.is_visible("#shortcuts")
    assert page.locator("#shortcut-list dt").count() == page.locator("#shortcut-list dd").count() >= 10
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    assert page.evaluate(SHOWN) == "question"
    page.keyboard.press("?")
    assert page.input_value("#question") == "?"
    assert not page.is_visible("#shortcuts")
    page.keyboard.press("Control+k")
    assert page.evaluate(SHOWN) == "search"
    page.keyboard.press("Control+,")
    assert page.is_visible("#settings")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+b")
    assert not page.is_visible("#new")
    page.keyboard.press("Control+b")
    assert page.is_visible("#new")
    answer_with(page, "One.", "Other.")
    ask(page, "Hello")
    page.keyboard.press("Control+Shift+E")
    page.wait_for_selector("text=2/2")
    page.focus("#question")
    page.keyboard.press("ArrowUp")
    assert page.input_value(".edit") == "Hello"
    page.keyboard.press("Escape")
    page.keyboard.press("Control+Shift+O")
    assert page.locator("#messages li").count() == 0


def test_settings_survive_a_reload(page: Any) -> None:
    set_fields(page, system="Be brief", top_k=3)
    page.reload()
    page.click("#open-settings")
    assert (page.input_value("[name=system]"), page.input_value("[name=top_k]")) == ("Be brief", "3")


def test_key_that_cannot_be_sent(page: Any) -> None:
    set_fields(page, key="schlüssel ✓")
    ask(page, "Hello")
    assert page.inner_text("#messages [role=alert]").startswith("The API key in the settings has characters")
