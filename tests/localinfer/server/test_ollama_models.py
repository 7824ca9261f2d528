"""Ollama's `/api/pull`, `/api/delete`, `/api/copy` and `/api/create`, with its Python client."""

import json
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback_hub import COMMIT, Fault, Hub, sha256
from server_process import ServerProcess, wait_until
from tiny import tiny_llama

from localinfer import paths

REPO = "owner/repo"
NAME = f"hf:{REPO}:Q8_0"
FILE = "m-Q8_0.gguf"
MESSAGES = [{"role": "user", "content": "Hello"}]
OPTIONS = {"seed": 1, "num_predict": 6}


@pytest.fixture(scope="module")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_llama(tmp_path_factory.mktemp("model") / FILE).read_bytes()


@pytest.fixture
def hub(model_bytes: bytes) -> Iterator[Hub]:
    with Hub() as hub:
        hub.repos[REPO] = {FILE: model_bytes}
        yield hub


class Machine(ServerProcess):
    """A server with all models on a machine, which has none in the beginning."""

    def __init__(self, root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.registry = root / "config" / "models.toml"
        variables = {
            "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(root / "hub"), "HF_HUB_DOWNLOAD_TIMEOUT": "2",
            "LOCALINFER_CACHE_DIR": str(root / "cache"), "NO_PROXY": "*",
        }  # fmt: skip
        kernels = paths.private_directory(paths.jit_dir())
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        (root / "cache").mkdir()
        (root / "cache" / "jit").symlink_to(kernels)  # compiling them again would take most of the time
        super().__init__(config_dir=self.registry.parent)

    def names(self) -> set[str]:
        return {each["name"] for each in self.get("/api/tags").body["models"]}

    def entry(self, name: str) -> Any:
        return tomllib.loads(self.registry.read_text())["models"][name]

    def files(self) -> list[Path]:
        """Return the downloaded and partial files."""
        return [path for path in (self.root / "hub").rglob("*") if path.is_file() and ".locks" not in path.parts]


@pytest.fixture
def machine(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with Machine(tmp_path, hub, monkeypatch) as machine:
        yield machine


@pytest.fixture(scope="module")
def unchanged(model_bytes: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with one model, for requests that are refused."""
    with Hub() as hub, pytest.MonkeyPatch.context() as monkeypatch:
        hub.repos[REPO] = {FILE: model_bytes}
        with Machine(tmp_path_factory.mktemp("unchanged"), hub, monkeypatch) as machine:
            assert machine.lines_of("/api/pull", {"model": NAME})[-1] == {"status": "success"}
            yield machine


@pytest.fixture
def client(machine: Machine) -> Any:
    return pytest.importorskip("ollama", reason="there is no package ollama").Client(host=machine.url)


@pytest.fixture
def errors() -> Any:
    return pytest.importorskip("ollama", reason="there is no package ollama").ResponseError


class TestPull:
    def test_progress(self, client: Any, machine: Machine, hub: Hub, model_bytes: bytes) -> None:
        hub.rate = 0.005
        first, *middle, last = client.pull(NAME, stream=True)
        assert (first.status, last.status) == ("pulling manifest", "success")
        digest, size = sha256(model_bytes), len(model_bytes)
        assert {(each.status, each.digest, each.total) for each in middle} == {
            (f"pulling {digest[:12]}", f"sha256:{digest}", size)
        }
        completed = [each.completed for each in middle]
        assert completed == sorted(completed)
        assert len(completed) > 2
        assert completed[-1] == size
        assert machine.names() == {NAME}
        assert client.chat(NAME, MESSAGES, options=OPTIONS).eval_count == 6

    def test_without_a_stream(self, client: Any, machine: Machine) -> None:
        assert client.pull(f"hf.co/{REPO}:Q8_0").status == "success"
        assert machine.post("/api/pull", {"model": NAME, "stream": False}).body == {"status": "success"}
        assert client.generate(f"hf.co/{REPO}:Q8_0", "Hello", options=OPTIONS).eval_count == 6

    def test_client_that_leaves_stops_the_download(self, machine: Machine, hub: Hub, model_bytes: bytes) -> None:
        hub.rate = 0.02
        with machine.open("/api/pull", {"model": NAME}) as answer:
            while "completed" not in json.loads(answer.readline()):
                pass
        assert wait_until(lambda: not is_growing(machine), 5)
        assert machine.names() == set()
        hub.rate = 0
        lines = machine.lines_of("/api/pull", {"model": NAME})
        assert next(each["completed"] for each in lines if "completed" in each) > 0
        assert lines[-1] == {"status": "success"}

    def test_wrong_content(self, client: Any, machine: Machine, hub: Hub, model_bytes: bytes, errors: Any) -> None:
        hub.faults.append(Fault(body=bytes(len(model_bytes))))
        with pytest.raises(errors, match="sha256 mismatch"):
            list(client.pull(NAME, stream=True))
        assert machine.names() == set()

    @pytest.mark.parametrize(
        ("name", "status", "problem"),
        [
            ("llama3.2", 404, "model: llama3.2 not found"),
            ("/etc/passwd", 404, "not found"),
            ("hf:owner/none:Q8_0", 404, "the hub has no such repository"),
            ("", 400, "model: is missing"),
        ],
    )
    def test_refused_names(self, unchanged: Machine, name: str, status: int, problem: str) -> None:
        answer = unchanged.post("/api/pull", {"model": name, "stream": False})
        assert answer.status == status
        assert problem in answer.body["error"]

    def test_addresses_are_not_requested(self, machine: Machine, hub: Hub) -> None:
        answer = machine.post("/api/pull", {"model": f"{hub.url}/blobs/x.gguf"})
        assert (answer.status, hub.requests) == (400, [])
        assert "URLs are not supported" in answer.body["error"]


def is_growing(machine: Machine) -> bool:
    """Return whether a file changes within half a second."""
    before = [(path, path.stat().st_mtime_ns) for path in machine.files()]
    time.sleep(0.5)
    return before != [(path, path.stat().st_mtime_ns) for path in machine.files()]


class TestDelete:
    def test_loaded_model(self, client: Any, machine: Machine) -> None:
        client.pull(NAME)
        client.generate(NAME, "Hello", options=OPTIONS)
        assert client.delete(NAME).status == "success"
        assert client.ps().models == []
        assert (machine.names(), machine.files()) == (set(), [])

    def test_waits_for_a_running_answer(self, machine: Machine, client: Any) -> None:
        client.pull(NAME)
        body = {"model": NAME, "prompt": "Hello", "options": {"num_predict": 100, "ignore_eos": True}}
        with machine.open("/api/generate", body) as answer:
            answer.readline()
            assert client.delete(NAME).status == "success"
            assert json.loads(answer.readlines()[-1])["eval_count"] == 100

    def test_missing_model(self, client: Any, errors: Any) -> None:
        with pytest.raises(errors, match="model: none not found") as caught:
            client.delete("none")
        assert caught.value.status_code == 404

    def test_files_that_others_own_stay(self, client: Any, machine: Machine, model_bytes: bytes, errors: Any) -> None:
        """The download of another program stays, and loses its other name."""
        snapshot = machine.root / "hub" / "models--owner--other" / "snapshots" / COMMIT / FILE
        snapshot.parent.mkdir(parents=True)
        snapshot.write_bytes(model_bytes)
        client.copy("hf:owner/other:Q8_0", "mine")
        assert client.delete("mine").status == "success"
        assert machine.names() == {"hf:owner/other:Q8_0"}
        with pytest.raises(errors, match="is not removed") as caught:
            client.delete("hf:owner/other:Q8_0")
        assert caught.value.status_code == 400
        assert snapshot.exists()


class TestCopy:
    def test_copy(self, client: Any, machine: Machine) -> None:
        client.pull(NAME)
        assert client.copy(NAME, "small:latest").status == "success"
        assert machine.entry("small") == {"source": NAME}
        assert machine.names() == {NAME, "small"}
        answers = [client.chat(name, MESSAGES, options=OPTIONS).message.content for name in (NAME, "small:latest")]
        assert answers[0] == answers[1]

    @pytest.mark.parametrize(
        ("source", "destination", "status", "problem"),
        [
            ("none", "x", 404, "model: none not found"),
            (NAME, "../x", 400, "destination: ../x: invalid name"),
            (NAME, "smollm2", 400, "destination: smollm2: is in use"),
            (NAME, "", 400, "destination: is missing"),
        ],
    )
    def test_errors(self, unchanged: Machine, source: str, destination: str, status: int, problem: str) -> None:
        answer = unchanged.post("/api/copy", {"source": source, "destination": destination})
        assert answer.status == status
        assert answer.body["error"].startswith(problem)
        assert str(unchanged.root) not in answer.body["error"]
        assert not unchanged.registry.exists()


class TestCreate:
    def test_fields(self, client: Any, machine: Machine) -> None:
        client.pull(NAME)
        parameters = {"temperature": 0.5, "num_ctx": 512, "stop": ["a", '"b"'], "num_gpu": 1}
        lines = list(client.create("mario", from_=NAME, system="Be Mario.", parameters=parameters, stream=True))
        assert [each.status for each in lines] == ["reading model metadata", "writing manifest", "success"]
        options = {"temp": 0.5, "ctx_size": 512, "stop": ["a", '"b"'], "system_prompt": "Be Mario."}
        assert machine.entry("mario") == {"source": NAME, "options": options}
        plain, mario = (client.chat(name, MESSAGES, options=OPTIONS) for name in (NAME, "mario"))
        assert mario.prompt_eval_count > plain.prompt_eval_count
        [running] = client.ps().models
        assert running.context_length == 512

    def test_template(self, client: Any, machine: Machine) -> None:
        client.pull(NAME)
        template = "{% for each in messages %}{{ each.content }}{% endfor %}"
        assert client.create("short", from_=NAME, template=template).status == "success"
        assert client.show("short").template == template
        client.create("same", from_=NAME, template=client.show(NAME).template)
        assert "options" not in machine.entry("same")

    def test_text_of_a_modelfile(self, machine: Machine, client: Any) -> None:
        client.pull(NAME)
        text = f"FROM {NAME}\nPARAMETER top_k 3\nSYSTEM Be brief."
        assert machine.lines_of("/api/create", {"name": "brief", "modelfile": text})[-1] == {"status": "success"}
        assert machine.entry("brief")["options"] == {"top_k": 3, "system_prompt": "Be brief."}

    def test_quantize(self, client: Any, machine: Machine, hub: Hub, tmp_path: Path) -> None:
        hub.repos[REPO] = {"m-F16.gguf": tiny_llama(tmp_path / "f16.gguf", type="F16").read_bytes()}
        source = f"hf:{REPO}:F16"
        client.pull(source)
        lines = [each.status for each in client.create("small", from_=source, quantize="q8_0", stream=True)]
        assert lines == ["reading model metadata", "quantizing model to q8_0", "writing manifest", "success"]
        assert client.show("small").details.quantization_level == "Q8_0"
        assert client.generate("small", "Hello", options=OPTIONS).eval_count == 6
        refused = machine.post("/api/create", {"model": "x", "from": source, "quantize": "q9_9", "stream": False})
        assert refused.status == 400
        assert refused.body["error"].startswith("quantize: TYPE: q9_9: no such type")
        assert machine.names() == {source, "small"}

    @pytest.mark.parametrize(
        ("changed", "status", "problem"),
        [
            ({"files": {"a.gguf": "sha256:0"}}, 400, "files: uploaded files are not supported"),
            ({"adapters": {"a.gguf": "sha256:0"}}, 400, "adapters: adapters are not supported"),
            ({"messages": MESSAGES}, 400, "messages: examples"),
            ({"parameters": {"grammar_file": "/etc/passwd"}}, 400, "parameters.grammar_file: "),
            ({"parameters": {"top_k": "x"}}, 400, "parameters.top_k: must be a number"),
            ({"parameters": {"stop": {}}}, 400, "parameters.stop: must be a number or a text"),
            ({"parameters": {"unknown": 1}}, 400, "parameters.unknown: not supported"),
            ({"template": "{{ .Prompt }}"}, 400, "template: TEMPLATE: templates of Ollama are not supported"),
            ({"modelfile": f"FROM {NAME}\nPARAMETER grammar_file /etc/passwd"}, 400, "modelfile: grammar_file: "),
            ({"modelfile": f"FROM {NAME}\nADAPTER x"}, 400, "modelfile: ADAPTER: "),
            ({"modelfile": "FROM /etc/passwd"}, 404, "from: /etc/passwd not found"),
            ({"from": "none"}, 404, "from: none not found"),
            ({"from": ""}, 400, "from: is missing"),
            ({"model": "a/b"}, 400, "model: a/b: invalid name"),
            ({"quantize": "--force"}, 400, "quantize: must be a quantization type"),
        ],
    )
    def test_errors(self, unchanged: Machine, changed: dict[str, Any], status: int, problem: str) -> None:
        answer = unchanged.post("/api/create", {"model": "x", "from": NAME} | changed)
        assert (answer.status, answer.body["error"][: len(problem)]) == (status, problem)
        assert not unchanged.registry.exists()


class TestServerOfOneModel:
    """Its clients change nothing on the machine."""

    @pytest.mark.parametrize("method_and_path", ["POST /api/pull", "DELETE /api/delete", "POST /api/create"])
    def test_refused(self, server: ServerProcess, method_and_path: str) -> None:
        answer = server.request(*method_and_path.split(), {"model": "other", "from": "tiny"})
        assert answer.status == 403
        assert "`localinfer serve` without models" in answer.body["error"]
        assert server.post("/api/copy", {"source": "tiny", "destination": "x"}).status == 403

    def test_pull_of_its_model(self, server: ServerProcess) -> None:
        assert server.lines_of("/api/pull", {"model": "tiny:latest"})[-1] == {"status": "success"}

    @pytest.mark.parametrize("path", ["/api/push", "/api/blobs/sha256:0123"])
    def test_files_are_not_transferred(self, server: ServerProcess, path: str) -> None:
        answer = server.post(path, {"model": "tiny"})
        assert answer.status == 501
        assert answer.body["error"].startswith(path[:9])
