"""The files for Docker, systemd and reverse proxies: names in them exist, and streams pass through real proxies."""

import contextlib
import http.client
import json
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from locations import CHECKOUT
from server_process import ServerProcess, wait_until
from tiny import tiny_llama

from cli.app import build_program
from localinfer import paths
from localinfer.server.settings import Settings

RELEASE = CHECKOUT / "release"
DOCKERFILE = RELEASE / "docker" / "Dockerfile"
COMPOSE = RELEASE / "docker" / "compose.yaml"
UNIT = RELEASE / "systemd" / "localinfer.service"
PROXIES = RELEASE / "proxies"
UPSTREAM = "127.0.0.1:8080"
ENDLESS = {"prompt": "Hello", "max_tokens": 16000, "ignore_eos": True, "stream": True}


def instructions(name: str) -> list[str]:
    """Return the arguments of each instruction of the Dockerfile with this name."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    return [line.removeprefix(name).strip() for line in text.splitlines() if line.startswith(name + " ")]


def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="there is no package pyyaml")
    service: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]["localinfer"]
    return service


def settings(name: str) -> list[str]:
    """Return the values of a setting of the unit."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def parse(words: list[str]) -> dict[str, Any]:
    """Return the values of a command line of localinfer. Fails if it is not valid."""
    program = build_program(words)
    with contextlib.suppress(typer.Exit), program.make_context("localinfer", words[:]) as context:
        return program.get_command(context, words[0]).make_context(words[0], words[1:], parent=context).params
    raise AssertionError(words)


# --- Docker ---


def test_commands_of_containers() -> None:
    [entry], [command] = instructions("ENTRYPOINT"), instructions("CMD")
    assert json.loads(entry) == ["localinfer"]
    for words in json.loads(command), compose()["command"]:
        assert (parse(words)["host"], parse(words)["port"]) == ("0.0.0.0", 8080)
    assert "http://127.0.0.1:8080/health" in DOCKERFILE.read_text()
    assert instructions("EXPOSE") == ["8080"]


def test_containers_write_only_into_their_volume() -> None:
    [volume] = instructions("VOLUME")
    variables = dict(word.partition("=")[::2] for line in instructions("ENV") for word in line.split())
    source = Path(paths.__file__).read_text()
    for name in ("LOCALINFER_CACHE_DIR", "LOCALINFER_DATA_DIR", "LOCALINFER_CONFIG_DIR"):
        assert name in source
        assert variables[name].startswith(volume + "/")
    assert variables["HF_HOME"].startswith(volume + "/")
    assert instructions("USER") == ["10001:10001"]
    assert compose()["volumes"] == [f"localinfer:{volume}"]
    assert compose()["read_only"] is True


def test_build_context_has_what_a_wheel_needs() -> None:
    allowed = {line[1:] for line in (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
               if line.startswith("!")}  # fmt: skip
    assert [name for name in allowed if not (CHECKOUT / name).exists()] == []
    pyproject = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    wheel = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
    project = pyproject["project"]
    needed = {*wheel["packages"], *wheel["force-include"], project["readme"]}
    needed |= {name for name in project["license-files"] if name.partition("/")[0] not in wheel["packages"]}
    assert needed | {"pyproject.toml"} == allowed
    assert (COMPOSE.parent / compose()["build"]["context"]).resolve() == CHECKOUT.resolve()
    assert CHECKOUT / compose()["build"]["dockerfile"] == DOCKERFILE


# --- systemd ---


def test_command_of_the_unit() -> None:
    [command] = settings("ExecStart")
    program, *words = shlex.split(command)
    assert program == "/opt/localinfer/bin/localinfer"
    assert parse(words)["port"] == Settings().port


def test_unit_allows_machine_code_and_its_own_directories() -> None:
    assert settings("MemoryDenyWriteExecute") == []
    variables = dict(word.partition("=")[::2] for line in settings("Environment") for word in line.split())
    rows = ("CACHE", "%C", "Cache"), ("DATA", "%S", "State"), ("CONFIG", "%E", "Configuration")
    for variable, specifier, kind in rows:
        [directory] = settings(f"{kind}Directory")
        assert variables[f"LOCALINFER_{variable}_DIR"] == f"{specifier}/{directory}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_unit_is_valid(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/localinfer/bin/localinfer", "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    arguments = ["security", "--offline=yes", "--threshold=20", unit]  # in tenths of the exposure
    checked = subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout[-500:]


# --- reverse proxies ---


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    pytest.importorskip("uvicorn", reason="the server needs uvicorn")
    model = tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", n_ctx=16384)
    with ServerProcess(model, "--parallel", "1", "--allow-host", "llm.example.com") as server:
        yield server


def nginx(folder: Path, server: ServerProcess, port: int) -> list[str | Path]:
    """Write the configuration of nginx and return its command line."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=llm.example.com",
         "-keyout", key, "-out", certificate], check=True, capture_output=True)  # fmt: skip
    text = (PROXIES / "nginx.conf").read_text().replace(UPSTREAM, f"127.0.0.1:{server.port}")
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
    text = text.replace("/etc/ssl/localinfer/fullchain.pem", str(certificate))
    text = text.replace("/etc/ssl/localinfer/privkey.pem", str(key))
    names = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{name}_temp_path {folder}/{name};\n" for name in names)
    whole = folder / "nginx.conf"
    whole.write_text(
        f"pid {folder}/nginx.pid;\nerror_log {folder}/error.log;\ndaemon off;\nworker_processes 1;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{text}}}\n"
    )
    return ["nginx", "-e", folder / "error.log", "-c", whole]


def caddy(folder: Path, server: ServerProcess, port: int) -> list[str | Path]:
    text = (PROXIES / "Caddyfile").read_text().replace(UPSTREAM, f"127.0.0.1:{server.port}")
    text = text.replace("llm.example.com {", f"llm.example.com:{port} {{\n\tbind 127.0.0.1\n\ttls internal", 1)
    options = f"admin off\nskip_install_trust\nauto_https disable_redirects\nstorage file_system {folder}"
    (folder / "Caddyfile").write_text(f"{{\n{options}\n}}\n{text}")
    return ["caddy", "run", "--config", folder / "Caddyfile", "--adapter", "caddyfile"]


@pytest.fixture(params=[nginx, caddy], ids=["nginx", "caddy"])
def proxy_port(request: pytest.FixtureRequest, served: ServerProcess, tmp_path: Path) -> Iterator[int]:
    """The port of a proxy in front of the server."""
    name = request.param.__name__
    for program in (name, "openssl"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}")
    port = free_port()
    command = request.param(tmp_path, served, port)
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/sbin:/usr/bin:/bin", "HOME": str(tmp_path)} | path_of(command[0]),
    )  # fmt: skip
    try:
        assert wait_until(lambda: status_of(port) == 200, 30), f"{name} does not answer"
        yield port
    finally:
        process.terminate()
        process.wait(10)


def path_of(program: str | Path) -> dict[str, str]:
    found = shutil.which(program)
    assert found
    return {"PATH": str(Path(found).parent)}


def connect(port: int) -> http.client.HTTPSConnection:
    """Return a connection to the proxy, whose certificate for llm.example.com nobody has signed."""
    context = ssl._create_unverified_context()
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
    plain = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sock = context.wrap_socket(plain, server_hostname="llm.example.com")
    return connection


def status_of(port: int) -> int:
    try:
        connection = connect(port)
        connection.request("GET", "/health", headers={"host": "llm.example.com"})
        return connection.getresponse().status
    except OSError:
        return 0


def test_streams_pass_through_proxies(served: ServerProcess, proxy_port: int) -> None:
    """The first events come long before the last one, and an answer stops when its client leaves."""
    connection = connect(proxy_port)
    headers = {"host": "llm.example.com", "origin": "https://llm.example.com", "content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(ENDLESS), headers)
    answer = connection.getresponse()
    assert answer.status == 200
    start = time.monotonic()
    assert all(answer.readline() for _ in range(20))
    assert time.monotonic() - start < 10
    assert served.get("/slots").body[0]["is_processing"], "the answer was complete before it was passed on"
    answer.close()
    connection.close()
    assert wait_until(lambda: not served.get("/slots").body[0]["is_processing"], 5)


def test_foreign_hosts_are_refused_behind_proxies(served: ServerProcess, proxy_port: int) -> None:
    """The proxy passes the name on by which the client calls it."""
    assert served.get("/v1/models", host="llm.example.com").status == 200
    assert served.get("/v1/models", host="evil.example").status == 403
    connection = connect(proxy_port)
    connection.request("GET", "/v1/models", headers={"host": "llm.example.com", "origin": "https://evil.example"})
    assert connection.getresponse().status == 403


def test_all_proxies_point_to_the_default_port() -> None:
    assert f"127.0.0.1:{Settings().port}" == UPSTREAM
    for name in ("nginx.conf", "Caddyfile", "traefik.yaml"):
        text = (PROXIES / name).read_text()
        assert UPSTREAM in text
        assert "--allow-host llm.example.com" in text
    yaml = pytest.importorskip("yaml", reason="there is no package pyyaml")
    http_part = yaml.safe_load((PROXIES / "traefik.yaml").read_text())["http"]
    assert {router["service"] for router in http_part["routers"].values()} == set(http_part["services"])
