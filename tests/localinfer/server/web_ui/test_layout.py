"""The page on a narrow screen, and what a screen reader gets."""

from typing import Any

import pytest
from web_page import answer_with, ask, attach, file

WIDE = """[...document.querySelectorAll('body *')]
    .filter(each => each.getBoundingClientRect().right > innerWidth + 1 && each.checkVisibility())
    .filter(each => !each.closest('pre, table, .formula, [hidden], .hidden')).map(each => each.outerHTML)"""
LONG = f"""{"x" * 300} and `{"y" * 300}` and $a + {"b" * 300}$

```python
{"z" * 300}
```

| {"a | " * 40}
|{"-|" * 40}
"""


@pytest.fixture
def phone(page: Any) -> Any:
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    return page


def test_list_covers_the_messages_of_a_phone(phone: Any) -> None:
    page = phone
    answer_with(page, "Yes.")
    ask(page, "Hello")
    width = page.evaluate("document.querySelector('main').clientWidth")
    assert width == 390
    assert not page.is_visible("#list")
    page.click("#toggle-list")
    assert page.is_visible("#list")
    assert page.get_attribute("#toggle-list", "aria-expanded") == "true"
    assert page.evaluate("document.querySelector('main').clientWidth") == width
    page.click("#cover", position={"x": 370, "y": 400})
    assert not page.is_visible("#list")
    page.click("#toggle-list")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main, #ask') === null")
    page.keyboard.press("Escape")
    assert not page.is_visible("#list")
    page.wait_for_selector("#toggle-list:focus")
    page.click("#toggle-list")
    page.click("#conversations li button >> nth=0")
    assert not page.is_visible("#list")
    assert page.get_attribute("#toggle-list", "aria-expanded") == "false"


def test_nothing_is_cut_on_a_phone(phone: Any) -> None:
    """Only code, tables and formulas scroll to the side; each within itself."""
    page = phone
    attach(page, file("n" * 120 + ".txt", b"text"))
    page.wait_for_selector("#attachments li small")
    assert page.evaluate(WIDE) == []
    answer_with(page, LONG, reasoning="r" * 300)
    ask(page, "q" * 300)
    page.wait_for_selector("math")
    assert page.evaluate(WIDE) == []
    for id in ("#open-settings", "#open-shortcuts"):
        page.click(id)
        assert page.evaluate(WIDE) == []
        page.keyboard.press("Escape")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_words_in_tables_are_not_broken(page: Any) -> None:
    """A cell with one word is one line high, however long the others are."""
    row = "| " + "a description of many words " * 10 + "| Complexity | Complexity |"
    answer_with(page, f"{row}\n|---|---|---|\n{row}\n\nA line.")
    ask(page, "Compare")
    height = """each => { const range = document.createRange(); range.selectNodeContents(each);
        return range.getBoundingClientRect().height; }"""
    assert page.locator("td").nth(1).evaluate(height) <= page.locator(".text > p").last.evaluate(height)


def test_dialogs_and_lists_have_names(page: Any) -> None:
    snapshot = page.locator("body").aria_snapshot()
    for each in ('navigation "Conversations"', 'list "Messages"', 'textbox "Message"', 'combobox "Model"',
                 'Attach files"', 'searchbox "Search all conversations"'):  # fmt: skip
        assert each in snapshot
    page.click("#open-settings")
    assert 'dialog "Settings"' in page.locator("body").aria_snapshot()
