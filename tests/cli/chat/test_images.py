"""Images in `localinfer chat`: options, commands, dropped paths, and sessions. The model is `fake_model.py`."""

import json
import os
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from seeing_model import picture
from terminal import Terminal

from localinfer import paths, session_media, sessions

OpenTerminal = Callable[..., Terminal]
FakeCli = Callable[..., "subprocess.CompletedProcess[bytes]"]
SIZE = len(picture())

on_terminals = pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")


@pytest.fixture
def png(tmp_path: Path) -> Path:
    path = tmp_path / "my cat.png"
    path.write_bytes(picture())
    return path


def test_image_of_a_question(fake_cli: FakeCli, fake_model: str, png: Path, tmp_path: Path) -> None:
    own = {"LOCALINFER_DATA_DIR": str(tmp_path / "data")}
    for flag in "--image", "--audio":
        result = fake_cli("chat", fake_model, flag, str(png), "What is this?", **own)
        assert result.stdout.decode() == f"1: <image of {SIZE} bytes>What is this?"
        assert "my cat.png: 4 x 3, 16 tokens" in result.stderr.decode()
    result = fake_cli("chat", fake_model, "--image", str(png), "What?", "--json", **own)
    assert json.loads(result.stdout)["text"] == f"1: <image of {SIZE} bytes>What?"
    assert not (tmp_path / "data").exists()  # one question is not saved
    result = fake_cli("mtmd-cli", "-m", fake_model, "--image", str(png), "-p", "What?", **own)
    assert f"<image of {SIZE} bytes>What?" in result.stdout.decode()


def test_video_of_a_question(fake_cli: FakeCli, fake_model: str, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(bytes(99))
    result = fake_cli("chat", fake_model, "--video", str(path), "What happens?")
    assert result.stdout.decode() == "1: <video of 99 bytes>What happens?"
    assert "clip.mp4: 2.0 s, 5 frames of 4 x 3, 40 tokens" in result.stderr.decode()
    result = fake_cli("generate", fake_model, "--video", str(path), "It shows")
    assert result.stdout.decode() == "<video of 99 bytes>It shows"
    result = fake_cli("mtmd-cli", "-m", fake_model, "--video", str(path), "--video-fps", "2", "-p", "What?")
    assert "<video of 99 bytes>What?" in result.stdout.decode()


def test_image_of_a_prompt(fake_cli: FakeCli, fake_model: str, png: Path) -> None:
    result = fake_cli("generate", fake_model, "--image", str(png), "This shows")
    assert result.stdout.decode() == f"<image of {SIZE} bytes>This shows"
    assert "my cat.png: 4 x 3, 16 tokens" in result.stderr.decode()


@pytest.mark.parametrize("command", ["chat", "generate"])
def test_files_that_are_no_images(fake_cli: FakeCli, fake_model: str, tmp_path: Path, command: str) -> None:
    missing = fake_cli(command, fake_model, "--image", "missing.png", "What?")
    assert (missing.returncode, missing.stdout) == (2, b"")
    assert missing.stderr.decode().splitlines()[-1] == "error: --image: missing.png: No such file or directory"
    (tmp_path / "text.png").write_bytes(b"text")
    damaged = fake_cli(command, fake_model, "--image", str(tmp_path / "text.png"), "What?")
    assert damaged.returncode == 2
    assert damaged.stderr.decode().splitlines()[-1].startswith("error: --image: ")


@on_terminals
def test_video_in_an_interactive_chat(terminal: OpenTerminal, fake_model: str, tmp_path: Path) -> None:
    path, own = tmp_path / "clip.mp4", {"LOCALINFER_DATA_DIR": str(tmp_path / "data")}
    path.write_bytes(bytes(99))
    t = terminal("chat", fake_model, "--session", "films", columns=200, **own)
    t.expect("> ")
    t.type(f"/video {path}\n")
    t.expect("clip.mp4: 2.0 s, 5 frames of 4 x 3, 40 tokens, with your next message")
    t.expect("> ")
    t.type("What happens?\n")
    t.expect("1: <video of 99 bytes>What happens?")
    t.expect("> ")
    t.type(f"/video {path} And then?\n")
    t.expect("3: <video of 99 bytes>And then?")


@on_terminals
def test_image_in_an_interactive_chat(terminal: OpenTerminal, fake_model: str, png: Path, tmp_path: Path) -> None:
    own = {"LOCALINFER_DATA_DIR": str(tmp_path / "data")}
    t = terminal("chat", fake_model, "--session", "cats", columns=200, **own)
    t.expect("> ")
    t.type(f"/image '{png}'\n")
    t.expect("my cat.png: 4 x 3, 16 tokens, with your next message")
    t.expect("> ")
    t.type("What is this?\n")
    t.expect(f"1: <image of {SIZE} bytes>What is this?")
    t.expect("t/s")
    t.expect("> ")
    t.type("and\n")
    t.expect("3: and")
    t.expect("t/s")
    t.expect("> ")
    t.type(str(png).replace(" ", "\\ ") + " Who is it?\n")
    t.expect("my cat.png: 4 x 3, 16 tokens")
    t.expect(f"5: <image of {SIZE} bytes>Who is it?")
    t.expect("t/s")
    t.expect("> ")
    t.type("/regen\n")
    t.expect(f"5: <image of {SIZE} bytes>Who is it?")
    t.expect("t/s")
    t.ctrl("D")
    assert t.wait() == 0
    stored = list((tmp_path / "data" / "sessions" / "media").iterdir())
    assert [path.name for path in stored] == [sha256(picture()).hexdigest()]  # once
    text = (tmp_path / "data" / "sessions" / "cats.jsonl").read_text()
    assert text.count(stored[0].name) == 2
    png.unlink()

    t = terminal("chat", fake_model, "--session", "cats", columns=200, **own)
    t.expect("[image: my cat.png]")
    t.expect("Who is it?")
    t.expect("> ")
    t.type("/regen\n")
    t.expect(f"5: <image of {SIZE} bytes>Who is it?")
    t.expect("t/s")
    t.expect("> ")
    t.type("/edit\n")
    t.expect("Who is it?")
    t.type("\n")
    t.expect(f"5: <image of {SIZE} bytes>Who is it?")
    t.expect("t/s")
    t.expect("> ")
    t.type(f"/export {tmp_path / 'cats.md'}\n")
    t.expect("> ")
    t.ctrl("D")
    assert t.wait() == 0
    assert "[image: my cat.png]\nWhat is this?" in (tmp_path / "cats.md").read_text()


@on_terminals
def test_an_image_is_kept_until_it_is_sent(
    terminal: OpenTerminal, fake_cli: FakeCli, fake_model: str, png: Path, tmp_path: Path
) -> None:
    own = {"LOCALINFER_DATA_DIR": str(tmp_path / "data")}
    (tmp_path / "tools.json").write_text('[{"name": "echo"}]')
    t = terminal("chat", fake_model, "--tools", str(tmp_path / "tools.json"), "--session", "cats", columns=200, **own)
    t.expect("> ")
    t.type("call\n")
    t.expect("echo was not run; type its result as the next message.")
    t.expect("> ")
    t.type(f"/image '{png}'\n")
    t.expect("with your next message")
    t.expect("> ")
    t.type("result\n")  # a result has no images
    t.expect("Attached images, sounds and videos are kept for your next message; /image without a path removes them.")
    t.expect("3: result")
    t.expect("t/s")
    t.expect("> ")
    t.type("Who is it?\n")
    t.expect(f"5: <image of {SIZE} bytes>Who is it?")
    t.expect("t/s")
    t.expect("> ")
    t.type("call\n")
    t.expect("echo was not run")
    t.ctrl("D")
    assert t.wait() == 0
    done = fake_cli("chat", fake_model, "--session", "cats", "--image", str(png), "result", **own)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"waits for the result of a tool call; give it without images and sounds" in done.stderr


@on_terminals
def test_a_kept_image_can_be_removed(terminal: OpenTerminal, fake_model: str, png: Path) -> None:
    t = terminal("chat", fake_model, "--no-save", columns=200)
    t.expect("> ")
    t.type(f"/image '{png}' an overflow\n")
    t.expect("error: context is full")
    t.expect("Attached images, sounds and videos are kept for your next message; /image without a path removes them.")
    t.expect("> ")
    t.type("/image\n")
    t.expect("removed from your next message: my cat.png")
    t.expect("> ")
    t.type("/image\n")
    t.expect("error: /image: missing path")
    t.expect("> ")
    t.type("Who?\n")
    t.expect("1: Who?")


@on_terminals
def test_an_unsaved_chat_keeps_its_images_in_memory(
    terminal: OpenTerminal, fake_model: str, png: Path, tmp_path: Path
) -> None:
    t = terminal("chat", fake_model, "--no-save", "--image", str(png), LOCALINFER_DATA_DIR=str(tmp_path / "data"))
    t.expect("> ")
    t.type("Who?\n")
    t.expect(f"1: <image of {SIZE} bytes>Who?")
    t.expect("t/s")
    t.expect("> ")
    png.unlink()
    t.type("/regen\n")
    t.expect(f"1: <image of {SIZE} bytes>Who?")
    assert not (tmp_path / "data" / "sessions" / "media").exists()


@on_terminals
def test_a_damaged_image_leaves_the_message(terminal: OpenTerminal, fake_model: str, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_bytes(b"text")
    t = terminal("chat", fake_model, "--no-save", columns=200)
    t.expect("> ")
    t.type(f"Look at {tmp_path}/text.png\n")
    t.expect("not an image")
    t.expect(f"> Look at {tmp_path}/text.png")  # to be edited


# --- sessions ---


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def question(content: bytes) -> dict[str, object]:
    part = session_media.new_part("image", content, "cat.png")
    return {"role": "user", "content": [part, {"type": "text", "text": "Who?"}]}


@pytest.mark.usefixtures("data")
def test_removing_a_session_removes_images_that_no_other_has() -> None:
    contents = {sha256(each).hexdigest(): each for each in (b"one", b"two", b"three")}
    first, second = sessions.create("m", "first"), sessions.create("m", "second")
    for session, images in (first, (b"one", b"two", b"three")), (second, (b"two",)):
        messages = [question(image) for image in images]
        session_media.store(messages, contents)
        session.replace_messages(messages)
    first.rewind(1)  # what was removed is still in the file
    assert first.title == "[image: cat.png] Who?"
    first.remove()
    assert [path.read_bytes() for path in (paths.sessions_dir() / "media").iterdir()] == [b"two"]
    assert sessions.open_session("second").messages == [question(b"two")]
    assert [name for name, _ in ((each.name, line) for each, line in sessions.search("who"))] == ["second"]


@pytest.mark.parametrize("digest", ["../../etc/passwd", "a" * 63, 5, None, ["x"]])
def test_hashes_of_a_session_file_are_checked(digest: object) -> None:
    messages = [{"role": "user", "content": [{"type": "image", "sha256": digest, "name": "x"}, 5]}]
    assert not list(session_media.digests(messages))
    [message] = session_media.for_model(messages, {})
    assert message["content"] == [{"type": "text", "text": "[image: x]"}, 5]
