"""The files of the web UI: their types and security policy, and the libraries that come with the program."""

import gzip
import hashlib
import json
import re

import pytest
from mcp_server import McpServer
from server_process import ServerProcess

from localinfer.server.http.origins import is_origin
from localinfer.server.http.web_ui import FOLDER, TYPES

LIBRARIES = FOLDER / "libraries"
MAX_SIZE = 1_500_000  # bytes of all libraries


def test_security_policy_forbids_other_hosts(server: ServerProcess, mcp: McpServer) -> None:
    """The page names no other host, and only --webui-connect adds one to the policy."""
    answer = server.get("/")
    assert answer.status == 200
    policy = dict(each.split(" ", 1) for each in answer.headers["content-security-policy"].split("; "))
    assert policy.pop("connect-src") == f"'self' {mcp.origin}"
    assert set(policy.values()) == {"'none'", "'self'"}
    assert policy["default-src"] == "'none'"
    links = re.findall(r'(?:src|href)="([^"]*)"', answer.body.decode())
    assert links
    assert all(link.startswith(("/page/", "#")) for link in links)
    assert server.get("/page/../app.py").status == 404


def test_every_file_has_its_type_and_the_policy(server: ServerProcess) -> None:
    policy = server.get("/").headers["content-security-policy"]
    for path in (path for path in FOLDER.rglob("*") if path.is_file()):
        name = path.relative_to(FOLDER).as_posix().removesuffix(".gz")
        answer = server.get(f"/page/{name}")
        assert answer.status == 200
        assert answer.headers["content-type"] == TYPES["." + name.rpartition(".")[2]]
        assert answer.headers["content-security-policy"] == policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = server.get(f"/page/{name}", if_none_match=answer.headers["etag"])
        assert (again.status, again.body) == (304, b"")


def test_libraries_are_what_their_record_says(server: ServerProcess) -> None:
    records = json.loads((LIBRARIES / "libraries.json").read_text())
    expected = {"libraries.json"}
    for record in records:
        assert (LIBRARIES / record["license_file"]).read_text().strip()
        for name, digest in record["sha256"].items():
            content = gzip.decompress((LIBRARIES / f"{name}.gz").read_bytes())
            assert hashlib.sha256(content).hexdigest() == digest
            answer = server.get(f"/page/libraries/{name}")
            assert answer.headers["content-encoding"] == "gzip"
            assert gzip.decompress(answer.body) == content
        expected |= {record["license_file"], *(f"{name}.gz" for name in record["sha256"])}
    assert {path.name for path in LIBRARIES.iterdir()} == expected
    assert sum(path.stat().st_size for path in LIBRARIES.iterdir()) < MAX_SIZE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, True) for text in ("http://127.0.0.1:3000", "https://example.org", "http://[::1]:80", "http://a.b-c")),
        *((text, False) for text in (
            "", "*", "http://*", "example.org", "http://", "http://a/", "http://a/b", "ftp://a", "http://a b",
            "http://a; script-src *", "http://a:x", "http://a\n", "http://a,http://b", "'unsafe-inline'", "data:",
        )),
    ],
)  # fmt: skip
def test_origins(text: str, expected: bool) -> None:
    """What is not an origin could add another rule to the policy."""
    assert is_origin(text) == expected
