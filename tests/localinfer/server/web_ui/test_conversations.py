"""Conversations in the web UI: search, rename, branch, delete, export, import, and where they are stored."""

import json
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess
from web_page import CHAT, answer_with, answer_with_deltas, ask, close_settings, endless, file, press, set_fields, texts

TITLES = "#conversations li > button:first-child"


def new_conversation(page: Any, question: str, answer: str) -> None:
    page.click("#new")
    answer_with(page, answer)
    ask(page, question)


def titles(page: Any) -> list[str]:
    return [str(each).split("\n")[0] for each in page.locator(TITLES).all_inner_texts()]


def export(page: Any, id: str) -> Any:
    """Return the content of the file that a button of the settings exports."""
    page.click("#open-settings")
    with page.expect_download() as download:
        page.click(id)
    close_settings(page)
    return json.loads(Path(download.value.path()).read_text("utf-8"))


def import_file(page: Any, content: bytes) -> str:
    """Import a file, and return the line that says what became of it."""
    page.click("#open-settings")
    with page.expect_file_chooser() as chooser:
        page.click("#import")
    chooser.value.set_files([file("file.json", content)])
    page.wait_for_selector("#settings-message:not(:empty)")
    line = str(page.inner_text("#settings-message"))
    close_settings(page)
    return line


def test_search(page: Any) -> None:
    new_conversation(page, "About cats", "They sleep a lot.")
    new_conversation(page, "About dogs", "They bark. " + "x " * 100 + "Sometimes they sleep.")
    assert titles(page) == ["About dogs", "About cats"]
    page.fill("#search", "ABOUT cats")
    assert titles(page) == ["About cats"]
    page.fill("#search", "sleep lot")
    assert page.locator(f"{TITLES} small").all_inner_texts() == ["They sleep a lot."]
    page.fill("#search", "sleep sometimes")
    assert page.locator(f"{TITLES} small").all_inner_texts() == ["…x x x x x x x Sometimes they sleep."]
    page.fill("#search", "no such words")
    assert page.is_visible("text=Nothing found.")
    page.press("#search", "Escape")
    assert len(titles(page)) == 2


def test_search_shows_the_branch_that_has_the_words(page: Any) -> None:
    answer_with(page, "First answer", "Second answer")
    ask(page, "Hello")
    press(page, "Regenerate this response")
    page.wait_for_selector("text=2/2")
    page.click("#new")
    page.fill("#search", "first answer")
    page.click(TITLES)
    assert texts(page) == ["Hello", "First answer"]


def test_rename(page: Any) -> None:
    new_conversation(page, "Old title", "Yes.")
    page.click("[aria-label='Rename: Old title']")
    page.keyboard.type("New title")
    page.keyboard.press("Enter")
    page.wait_for_selector("[aria-label='Rename: New title']")
    page.reload()
    page.wait_for_selector("[aria-label='Rename: New title']")
    assert page.title() == "New title · localinfer"
    page.click("[aria-label='Rename: New title']")
    page.keyboard.type("dropped")
    page.keyboard.press("Escape")
    assert titles(page) == ["New title"]


def test_branch_into_a_new_conversation(page: Any) -> None:
    answer_with(page, "One.", "Two.", "Three.")
    ask(page, "First")
    ask(page, "Second")
    press(page, "Continue from here in a new conversation", 1)
    page.wait_for_selector("[aria-current] >> text=First (branch)")
    assert texts(page) == ["First", "One."]
    ask(page, "Third")
    assert texts(page) == ["First", "One.", "Third", "Three."]
    assert titles(page) == ["First (branch)", "First"]
    page.click(f"{TITLES} >> nth=1")
    assert texts(page) == ["First", "One.", "Second", "Two."]


def test_delete_a_message(page: Any) -> None:
    """The messages after it go, too; another version of it is shown, if there is one."""
    answer_with(page, "One.", "Other.", "Two.")
    ask(page, "First")
    press(page, "Regenerate this response")
    page.wait_for_selector("text=2/2")
    ask(page, "Second")
    page.once("dialog", lambda dialog: dialog.dismiss())
    press(page, "Delete this message and all that follow it", 1)
    assert texts(page) == ["First", "Other.", "Second", "Two."]
    page.on("dialog", lambda dialog: dialog.accept())
    press(page, "Delete this message and all that follow it", 1)
    assert texts(page) == ["First", "One."]
    page.reload()
    page.wait_for_selector("text=One.")
    press(page, "Delete this message and all that follow it", 0)
    assert texts(page) == []


def test_export_and_import(page: Any) -> None:
    """Everything comes back, as further conversations; nothing is replaced."""
    answer_with(page, "One.", "Other.", reasoning="Hm.")
    ask(page, "First")
    press(page, "Regenerate this response")
    page.wait_for_selector("text=2/2")
    new_conversation(page, "Second", "Two.")
    one, everything = export(page, "#export"), export(page, "#export-all")
    assert [each["title"] for each in one["conversations"]] == ["Second"]
    assert sorted(each["title"] for each in everything["conversations"]) == ["First", "Second"]
    assert import_file(page, json.dumps(everything).encode()) == "file.json: 2 conversations imported"
    assert sorted(titles(page)) == ["First", "First", "Second", "Second"]
    page.reload()
    page.wait_for_selector(TITLES)
    page.click(f"{TITLES} >> text=First >> nth=0")
    assert texts(page) == ["First", "Other."]
    assert page.locator(".reasoning > div").text_content() == "Hm."
    press(page, "Previous version")
    assert texts(page) == ["First", "One."]


def test_import_of_lists_of_messages(page: Any) -> None:
    pairs = ("system", "s"), ("user", "Hi"), ("assistant", "Ho")
    messages = [{"role": role, "content": content} for role, content in pairs]
    assert import_file(page, json.dumps(messages).encode()) == "file.json: 1 conversation imported"
    assert import_file(page, json.dumps({"messages": messages}).encode()) == "file.json: 1 conversation imported"
    page.click(TITLES)
    assert texts(page) == ["Hi", "Ho"]


def tree(**nodes: Any) -> Any:
    conversation = {"id": "x", "title": "t", "changed": 1, "leaf": next(iter(nodes), None), "nodes": nodes}
    return {"format": "localinfer conversations", "version": 1, "conversations": [conversation]}


USER = {"role": "user", "content": "Hi", "parent": None}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"not json", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (None, "has no conversations"),
        ({}, "has no conversations"),
        ([], "has no messages"),
        ([1], "has a message with an unknown role"),
        (tree() | {"version": 2}, "was exported by another version"),
        (tree() | {"conversations": [None]}, "has a conversation without title or messages"),
        (tree(a=None), "has a message that is not an object"),
        (tree(a=USER | {"role": "root"}), "has a message with an unknown role"),
        (tree(a=USER | {"content": 1}), "has a message whose content is not text"),
        (tree(a=USER | {"parent": "b"}), "has a message that follows no other"),
        (tree(a=USER | {"parent": "b"}, b=USER | {"parent": "a"}), "has a message that follows no other"),
        (tree(a=USER | {"attachments": "abc"}), "has a field that is not a list"),
        (tree(a=USER | {"attachments": [{"name": "x"}]}), "has an invalid attachment"),
        (tree(a=USER | {"attachments": [{"name": "x", "image": "https://example.org"}]}), "has an invalid image"),
        (tree(a=USER | {"tool_calls": [{"id": 1}]}), "has an invalid tool call"),
    ],
)
def test_refused_files(page: Any, value: object, problem: str) -> None:
    """A line says what is wrong, and nothing is imported or lost."""
    new_conversation(page, "Kept", "Yes.")
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    assert import_file(page, content) == f"file.json: {problem}"
    assert titles(page) == ["Kept"]


def test_conversations_of_earlier_versions_are_kept(page: Any) -> None:
    """They were in the local storage, one by one."""
    node = {"id": "n1", "parent": None, "role": "user", "content": "From before"}
    old = {"id": "c1", "title": "From before", "changed": 1, "nodes": {"n1": node}, "leaf": "n1"}
    page.evaluate("text => localStorage.setItem('localinfer.conversation.c1', text)", json.dumps(old))
    page.reload()
    page.wait_for_selector(TITLES)
    assert texts(page) == ["From before"]
    assert page.evaluate("Object.keys(localStorage).filter(key => key.startsWith('localinfer.conversation'))") == []
    page.reload()
    page.wait_for_selector(TITLES)
    assert titles(page) == ["From before"]


def test_browser_without_a_database(page: Any) -> None:
    """Old conversations stay where they are, and a line says that nothing is saved."""
    page.add_init_script("IDBFactory.prototype.open = () => { throw new Error('off'); };")
    node = {"id": "n1", "parent": None, "role": "user", "content": "From before"}
    old = {"id": "c1", "title": "From before", "changed": 1, "nodes": {"n1": node}, "leaf": "n1"}
    page.evaluate("text => localStorage.setItem('localinfer.conversation.c1', text)", json.dumps(old))
    page.reload()
    page.wait_for_selector(TITLES)
    assert texts(page) == ["From before"]
    answer_with(page, "Yes.")
    ask(page, "And now?")
    page.wait_for_selector("#notice:visible")
    assert "not saved" in page.inner_text("#notice")
    assert page.evaluate("localStorage.getItem('localinfer.conversation.c1') !== null")


def test_two_tabs(page: Any, server: ServerProcess) -> None:
    other = page.context.new_page()
    other.goto(server.url)
    other.wait_for_selector("#model option", state="attached")
    answer_with(page, "Yes.")
    ask(page, "From the first tab")
    other.wait_for_selector(TITLES)
    other.click(TITLES)
    assert texts(other) == ["From the first tab", "Yes."]
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("[aria-label='Remove: From the first tab']")
    other.wait_for_selector(TITLES, state="detached")


def test_one_conversation_in_two_tabs(page: Any, server: ServerProcess) -> None:
    """A response in one tab loses neither what another tab adds meanwhile, nor a message that is edited there."""
    page.route(CHAT, endless)
    set_fields(page, max_tokens=16000)
    page.fill("#question", "Long")
    page.press("#question", "Enter")
    page.wait_for_selector(".assistant .text > *")
    other = page.context.new_page()
    other.goto(server.url)
    other.wait_for_selector("#messages >> text=incomplete")
    answer_with(other, "Short.")
    ask(other, "Meanwhile")
    assert texts(other)[2:] == ["Meanwhile", "Short."]
    press(other, "Edit this message and resend")
    other.fill(".edit", "Edited")
    page.wait_for_timeout(2500)  # the response is saved
    other.press(".edit", "Enter")
    other.wait_for_selector("#send:visible")
    assert texts(other)[2:] == ["Edited", "Short."]
    page.wait_for_timeout(100)
    page.keyboard.press("Escape")
    page.wait_for_selector("#send:visible")
    for each in (page, other):
        each.reload()
        each.wait_for_selector("#messages >> text=2/2")
        shown = texts(each)
        assert (shown[0], shown[2:]) == ("Long", ["Edited", "Short."])


def test_removed_conversation_does_not_come_back(page: Any) -> None:
    """Not even if its answer was still being generated."""
    page.route(CHAT, endless)
    page.fill("#question", "Go on")
    page.press("#question", "Enter")
    page.wait_for_selector(".assistant .text > *")
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("[aria-label='Remove: Go on']")
    page.wait_for_selector("#send:visible")
    assert titles(page) == []
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    assert titles(page) == []


def test_answer_is_saved_while_it_is_generated(page: Any) -> None:
    page.route(CHAT, endless)
    set_fields(page, max_tokens=16000)
    page.fill("#question", "Go on")
    page.press("#question", "Enter")
    page.wait_for_selector(TITLES)
    page.wait_for_selector(".assistant .text > *")
    page.wait_for_timeout(2500)
    page.reload()
    page.wait_for_selector(".assistant .text > *")
    assert page.inner_text(".assistant .note") == "incomplete"


def test_edit_and_continue_the_response(page: Any) -> None:
    requests = answer_with_deltas(page, [[{"content": "One two"}], [{"content": " four"}], [{"content": " five"}]])
    ask(page, "Count")
    press(page, "Edit this response")
    page.fill(".edit", "One three")
    page.click("text=Save and continue")
    page.wait_for_selector("text=2/2")
    assert requests[-1]["messages"][-1] == {"role": "assistant", "content": "One three"}
    assert texts(page) == ["Count", "One three four"]
    press(page, "Continue this response")
    page.wait_for_selector("text=five")
    assert requests[-1]["messages"][-1] == {"role": "assistant", "content": "One three four"}
    assert texts(page) == ["Count", "One three four five"]
    press(page, "Edit this response")
    page.fill(".edit", "Kept as it is")
    page.click("text=Save >> nth=0")
    page.wait_for_selector("text=3/3")
    assert len(requests) == 3
    assert "edited" in page.inner_text("#messages li:last-child .tools")


def test_the_server_continues_the_response(page: Any) -> None:
    """With a real model, the text of the response stays and grows."""
    page.route(CHAT, endless)
    set_fields(page, max_tokens=4, seed=1)
    ask(page, "Hello")
    press(page, "Edit this response")
    page.fill(".edit", "My own words")
    page.click("text=Save and continue")
    page.wait_for_selector("text=2/2")
    assert texts(page)[1].startswith("My own words")
    assert len(texts(page)[1]) > len("My own words")


def test_rename_while_the_model_responds(page: Any) -> None:
    """The field stays while the list is rendered again."""
    page.route(CHAT, endless)
    page.fill("#question", "Go on")
    page.press("#question", "Enter")
    page.wait_for_selector(".assistant .text > *")
    page.click("[aria-label='Rename: Go on']")
    page.keyboard.type("A new")
    page.wait_for_timeout(2500)  # the response is saved every two seconds
    page.keyboard.type(" title")
    page.keyboard.press("Enter")
    page.wait_for_selector("[aria-label='Rename: A new title']")
    page.keyboard.press("Escape")
    page.wait_for_selector("#send:visible")


def test_response_to_a_branch_that_ends_with_a_question(page: Any) -> None:
    answer_with(page, "One.", "Two.", "Three.")
    ask(page, "First")
    press(page, "Continue from here in a new conversation", 0)
    page.wait_for_selector("[aria-current] >> text=First (branch)")
    assert texts(page) == ["First"]
    press(page, "Let the model respond")
    page.wait_for_selector("text=Two.")
    page.on("dialog", lambda dialog: dialog.accept())
    press(page, "Delete this message and all that follow it")
    page.keyboard.press("Control+Shift+E")
    page.wait_for_selector("text=Three.")
    assert texts(page) == ["First", "Three."]


def test_damaged_image_does_not_stop_the_page(page: Any) -> None:
    image = {"name": "x.png", "image": "data:image/png;base64,AAA=A"}
    import_file(page, json.dumps(tree(a=USER | {"attachments": [image]})).encode())
    page.click(TITLES)
    page.wait_for_selector("#messages canvas", state="detached")
    assert texts(page) == ["Hi"]
