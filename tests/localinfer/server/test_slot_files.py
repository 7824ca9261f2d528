"""The KV caches of slots in files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import Response, ServerProcess

PROMPT = "the capital and the country " * 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def saving(tiny: Path, folder: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tiny, "--parallel", "2", "--slot-save-path", folder) as served:
        yield served


def complete(server: ServerProcess, slot: int, prompt: str = PROMPT) -> Any:
    request = {"prompt": prompt, "id_slot": slot, "n_predict": 4, "seed": 1, "ignore_eos": True, "return_tokens": True}
    return server.post("/completion", request).body


def act(server: ServerProcess, slot: int, action: str, **fields: str) -> Response:
    return server.post(f"/slots/{slot}?action={action}", fields)


def test_save_erase_and_restore(saving: ServerProcess, folder: Path) -> None:
    first = complete(saving, 1)
    assert first["id_slot"] == 1
    n_prompt = first["timings"]["prompt_n"]
    saved = act(saving, 1, "save", filename="one.bin").body
    assert saved["n_saved"] == n_prompt + 3  # the last token is not evaluated
    assert saved["n_written"] == (folder / "one.bin").stat().st_size
    assert (folder / "one.bin").stat().st_mode & 0o077 == 0
    assert act(saving, 1, "erase").body["n_erased"] == saved["n_saved"]
    assert complete(saving, 1)["timings"]["prompt_n"] == n_prompt
    act(saving, 1, "erase")
    restored = act(saving, 0, "restore", filename="one.bin").body
    assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
    again = complete(saving, 0)
    assert (again["timings"]["prompt_n"], again["tokens"]) == (1, first["tokens"])


def test_invalid_requests(saving: ServerProcess, folder: Path) -> None:
    (folder / "damaged.bin").write_bytes(b"LISNAPSH" + b"\0" * 100)
    for name in ("", "..", "../x", "a/b", "/etc/passwd", "missing.bin", "damaged.bin"):
        assert act(saving, 0, "restore", filename=name).status == 400, name
    assert act(saving, 0, "forget").status == 400
    assert act(saving, 2, "erase").status == 400
    assert saving.post("/slots/x?action=erase", {}).status == 400


def test_files_need_a_folder(server: ServerProcess) -> None:
    answer = act(server, 0, "save", filename="one.bin")
    assert answer.status == 501
    assert "--slot-save-path" in answer.body["error"]["message"]
    assert act(server, 0, "erase").status == 200
