"""Attached files in the web UI: chosen, dropped and pasted; text, source code, PDFs and images."""

import base64
import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from seeing_model import picture, write_seeing_model
from server_process import ServerProcess
from web_page import answer_with, answer_with_deltas, ask, attach, file, press, texts

import localinfer

DROP = """([name, type, content]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([content], name, { type }));
    document.dispatchEvent(new DragEvent('dragover', { dataTransfer: transfer, bubbles: true, cancelable: true }));
    const isShown = document.body.classList.contains('dropping');
    document.dispatchEvent(new DragEvent('drop', { dataTransfer: transfer, bubbles: true, cancelable: true }));
    return isShown;
}"""
PASTE = """([name, type, content]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([content], name, { type }));
    const event = new ClipboardEvent('paste', { clipboardData: transfer, bubbles: true, cancelable: true });
    document.getElementById('question').dispatchEvent(event);
}"""


PASTE_BYTES = PASTE.replace("[content]", "[new Uint8Array(content)]")
LOCKED = f"/Encrypt << /Filter /Standard /V 1 /R 2 /O <{'00' * 32}> /U <{'00' * 32}> /P -4 >> /ID [<00> <00>]"


def pdf(*pages: str, trailer: str = "") -> bytes:
    """Return a PDF whose pages have one line of text each; an empty text makes a page without any."""
    contents = [f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET" if text else "" for text in pages]
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, content in enumerate(contents):
        resources = "/Resources << /Font << /F1 3 0 R >> >>"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] {resources} /Contents {5 + 2 * n} 0 R >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    body, offsets = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{each}\nendobj\n".encode()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    end = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R {trailer} >>"
    return body + f"{end}\nstartxref\n{len(body)}\n%%EOF\n".encode()


def png() -> bytes:
    """Return a white image of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0\xff\xff\xff")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def sent_text(requests: list[Any]) -> str:
    return str(requests[-1]["messages"][-1]["content"])


def test_files_are_sent_before_the_message_and_stored(page: Any) -> None:
    requests = answer_with_deltas(page, [[{"content": "Yes."}]])
    attach(page, file("a.py", b"print('<b>')\n"), file("b.md", "```\nä\n```".encode()), file("c.txt", b"gone"))
    page.click("[aria-label='Remove c.txt']")
    ask(page, "What is this?")
    assert sent_text(requests) == "a.py:\n```\nprint('<b>')\n```\n\nb.md:\n````\n```\nä\n```\n````\n\nWhat is this?"
    assert page.locator("#attachments li").count() == 0
    page.reload()
    assert page.locator(".attachments summary").all_inner_texts() == ["a.py", "b.md"]
    page.click("text=a.py")
    page.wait_for_selector(".attachments pre:not(:empty)")  # it is filled after the event that unfolds it
    assert page.inner_text(".attachments pre >> nth=0") == "print('<b>')\n"
    press(page, "Edit this message and resend")
    page.fill(".edit", "And now?")
    page.press(".edit", "Enter")
    page.wait_for_selector("text=2/2")
    assert sent_text(requests).startswith("a.py:\n")
    assert sent_text(requests).endswith("\n\nAnd now?")


def test_file_without_a_message(page: Any) -> None:
    requests = answer_with_deltas(page, [[{"content": "Yes."}]])
    attach(page, file("only.txt", b"text"))
    page.wait_for_selector("#attachments li span")
    page.click("#send")
    page.wait_for_selector("text=Yes.")
    assert sent_text(requests) == "only.txt:\n```\ntext\n```"
    assert page.inner_text("#conversations li:first-child").startswith("only.txt")


@pytest.mark.parametrize("script", [DROP, PASTE])
def test_dropped_and_pasted_files(page: Any, script: str) -> None:
    requests = answer_with_deltas(page, [[{"content": "Yes."}]])
    assert page.evaluate(script, ["note.txt", "text/plain", "from elsewhere"]) in (True, None)
    page.wait_for_selector("#attachments >> text=note.txt")
    assert not page.evaluate("document.body.classList.contains('dropping')")
    ask(page, "Read")
    assert "from elsewhere" in sent_text(requests)


def test_pdf(page: Any) -> None:
    requests = answer_with_deltas(page, [[{"content": "Yes."}]])
    attach(page, file("paper.pdf", pdf("First page", "Second \\(last\\) page"), "application/pdf"))
    page.wait_for_selector("#attachments >> text=paper.pdf")
    ask(page, "Read")
    assert sent_text(requests) == "paper.pdf:\n```\nFirst page\n\nSecond (last) page\n```\n\nRead"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.bin", b"\x80\x81\0", "is neither text nor a PDF"),
        ("a.dat", b"a\0b", "is neither text nor a PDF"),
        ("a.txt", b" \n", "is empty"),
        ("a.pdf", b"%PDF-1.4\nnot really", "is not a valid PDF"),
        ("a.pdf", pdf(""), "contains no text; its pages may be images"),
        ("a.pdf", pdf("secret", trailer=LOCKED), "needs a password"),
        ("a.log", b"x" * ((4 << 20) + 1), "is too large"),
    ],
    ids=["binary", "zero", "empty", "damaged", "scan", "locked", "large"],
)
def test_refused_files(page: Any, name: str, content: bytes, problem: str) -> None:
    """A line says what is wrong; other files and the text are kept."""
    page.fill("#question", "kept")
    attach(page, file("good.txt", b"good"), file(name, content))
    page.wait_for_selector("#notice:visible")
    assert page.inner_text("#notice span") == f"{name}: {problem}"
    assert page.locator("#attachments li span").all_inner_texts() == ["good.txt"]
    assert page.input_value("#question") == "kept"
    page.click("#close-notice")
    assert not page.is_visible("#notice")


def test_text_encodings(page: Any) -> None:
    requests = answer_with_deltas(page, [[{"content": "Yes."}]])
    attach(page, file("u16.txt", "größer".encode("utf-16")), file("bom.txt", b"\xef\xbb\xbfplain"))
    page.wait_for_selector("#attachments >> text=bom.txt")
    ask(page, "Read")
    assert "\ngrößer\n" in sent_text(requests)
    assert "\nplain\n" in sent_text(requests)


def test_images_need_a_model_that_sees(page: Any) -> None:
    attach(page, file("photo.png", png(), "image/png"), file("talk.mp3", b"x", "audio/mpeg"))
    page.wait_for_selector("#notice:visible")
    assert page.inner_text("#notice span") == (
        "photo.png: the model tiny cannot see images; talk.mp3: the model tiny cannot hear audio"
    )
    body = json.dumps({"modalities": {"vision": True}, "default_generation_settings": {"n_ctx": 100}})
    page.route("**/props*", lambda route: route.fulfill(content_type="application/json", body=body))
    requests = answer_with_deltas(page, [[{"content": "White."}]])
    attach(page, file("photo.png", png(), "image/png"))
    page.wait_for_selector("#attachments canvas")
    ask(page, "Which color?")
    address = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    assert requests[-1]["messages"][-1]["content"] == [
        {"type": "image_url", "image_url": {"url": address}},
        {"type": "text", "text": "Which color?"},
    ]
    assert page.locator("#messages canvas").get_attribute("aria-label") == "photo.png"


def let_model_read(page: Any) -> None:
    modalities = {"vision": True, "audio": True}
    body = json.dumps({"modalities": modalities, "default_generation_settings": {"n_ctx": 100}})
    page.route("**/props*", lambda route: route.fulfill(content_type="application/json", body=body))


def test_large_images_are_scaled_down(page: Any) -> None:
    let_model_read(page)
    requests = answer_with_deltas(page, [[{"content": "Noise."}]])
    large = picture(size=(3000, 300))
    photo = io.BytesIO()
    Image.open(io.BytesIO(picture(size=(1000, 2500)))).save(photo, "JPEG", quality=95)
    assert min(len(large), len(photo.getvalue())) > 2 << 20
    attach(
        page, file("large.png", large, "image/png"), file("photo.jpg", photo.getvalue(), "image/jpeg"),
        file("damaged.png", bytes(3 << 20), "image/png"),
    )  # fmt: skip
    page.wait_for_selector("#attachments >> text=damaged.png")
    ask(page, "What is this?")
    urls = [part["image_url"]["url"] for part in requests[-1]["messages"][-1]["content"][:3]]
    images = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls[:2]]
    assert [(each.format, each.size) for each in images] == [("PNG", (2048, 205)), ("JPEG", (819, 2048))]
    assert [url.partition(";")[0] for url in urls] == ["data:image/png", "data:image/jpeg", "data:image/png"]
    assert len(base64.b64decode(urls[2].partition(",")[2])) == 3 << 20  # the server tells what is wrong with it


def test_more_attachments_than_a_request_holds(page: Any) -> None:
    let_model_read(page)
    requests = answer_with_deltas(page, [[{"content": "Silence."}]])
    attach(page, file("one.wav", bytes(12 << 20), "audio/wav"))
    page.wait_for_selector("#attachments >> text=one.wav")
    ask(page, "What is said?")
    attach(page, file("two.wav", bytes(12 << 20), "audio/wav"), file("three.wav", bytes(11_700_000), "audio/wav"))
    page.wait_for_selector("#attachments >> text=three.wav")
    problem = "this conversation with all its attachments would be larger than the 32 MiB that the server accepts"
    assert page.inner_text("#notice span") == f"two.wav: {problem}"
    assert page.locator("#attachments li span").all_inner_texts() == ["three.wav"]
    page.fill("#question", "x " * (1 << 16))
    page.press("#question", "Enter")
    page.wait_for_selector("#notice >> text=This conversation")
    assert len(requests) == 1
    assert len(page.input_value("#question")) == 2 << 16
    ask(page, "And now?")
    assert len(requests) == 2


def test_sounds_need_a_model_that_hears(page: Any) -> None:
    body = json.dumps({"modalities": {"vision": False, "audio": True}, "default_generation_settings": {"n_ctx": 100}})
    page.route("**/props*", lambda route: route.fulfill(content_type="application/json", body=body))
    requests = answer_with_deltas(page, [[{"content": "Hello."}]])
    attach(page, file("talk.wav", b"RIFF", "audio/wav"), file("film.mp4", b"x", "video/mp4"))
    page.wait_for_selector("#attachments >> text=talk.wav")
    assert page.inner_text("#notice span") == "film.mp4: the model tiny cannot watch videos"
    ask(page, "What is said?")
    assert requests[-1]["messages"][-1]["content"] == [
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(b"RIFF").decode(), "format": "wav"}},
        {"type": "text", "text": "What is said?"},
    ]
    page.reload()
    assert page.inner_text(".attachments") == "talk.wav"


def test_videos_need_a_model_that_watches(page: Any) -> None:
    body = json.dumps({"modalities": {"video": True}, "default_generation_settings": {"n_ctx": 100}})
    page.route("**/props*", lambda route: route.fulfill(content_type="application/json", body=body))
    requests = answer_with_deltas(page, [[{"content": "A cat."}]])
    attach(page, file("film.mp4", b"film", "video/mp4"))
    page.wait_for_selector("#attachments >> text=film.mp4")
    ask(page, "What happens?")
    address = f"data:video/mp4;base64,{base64.b64encode(b'film').decode()}"
    assert requests[-1]["messages"][-1]["content"] == [
        {"type": "input_video", "input_video": {"url": address}},
        {"type": "text", "text": "What happens?"},
    ]
    page.reload()
    assert page.inner_text(".attachments") == "film.mp4"


def test_the_model_sees_an_image_that_was_pasted(browser: Any, tmp_path: Path) -> None:
    """Without mocks: a server with a model that sees."""
    model = write_seeing_model(tmp_path)
    with localinfer.load(model) as loaded:  # compiles the kernels
        loaded.chat([{"role": "user", "content": [{"type": "image", "image": picture()}]}], max_tokens=2)
    with ServerProcess(model, "-n", "4") as seeing:
        page = browser.new_page()
        page.goto(seeing.url)
        page.wait_for_selector("#model option", state="attached")
        page.evaluate(PASTE_BYTES, ["cat.png", "image/png", list(picture())])
        page.wait_for_selector("#attachments canvas")
        with page.expect_response("**/v1/chat/completions") as response:
            ask(page, "Who?")
        assert response.value.status == 200
        assert page.locator("#messages canvas").get_attribute("aria-label") == "cat.png"
        assert not page.is_visible("#notice")
        page.close()


def test_attachments_are_found_by_the_search(page: Any) -> None:
    answer_with(page, "Yes.")
    attach(page, file("notes.txt", b"the word zebra is here"))
    page.wait_for_selector("#attachments >> text=notes.txt")
    ask(page, "Read")
    page.click("#new")
    page.fill("#search", "zebra")
    page.click("#conversations button >> nth=0")
    assert texts(page) == ["Read", "Yes."]
