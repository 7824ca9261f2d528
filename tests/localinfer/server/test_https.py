"""HTTPS with a certificate of one's own."""

import http.client
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from server_process import ServerProcess

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return the options with a certificate for localhost and its key."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True)  # fmt: skip
    return ["--ssl-cert-file", str(certificate), "--ssl-key-file", str(key)]


def test_https(tiny: Path, files: list[str]) -> None:
    with ServerProcess(tiny, *files) as served:
        assert served.url.startswith("https://")
        context = ssl.create_default_context(cafile=files[1])
        connection = http.client.HTTPSConnection("127.0.0.1", served.port, timeout=60, context=context)
        connection.request("GET", "/health", headers={"origin": f"https://127.0.0.1:{served.port}"})
        assert connection.getresponse().status == 200
        connection.close()
        with pytest.raises((http.client.HTTPException, OSError)):
            served.get("/health")  # HTTP


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--ssl-cert-file", "cert.pem"], "needs --ssl-key-file"),
        (["--ssl-cert-file", "missing.pem", "--ssl-key-file", "missing.pem"], "missing.pem: No such file"),
        (["--ssl-cert-file", __file__, "--ssl-key-file", __file__], "not a certificate and its key"),
    ],
)
def test_unusable_files(tiny: Path, arguments: list[str], problem: str) -> None:
    with pytest.raises(AssertionError, match=f"error: .*{problem}"):
        ServerProcess(tiny, *arguments)
