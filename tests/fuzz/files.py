"""Fuzzing of files other than models: sessions, snapshots, checkpoints, manifests, settings, batches, object files.

A target has valid files, mutates one of them, and reads it as the program does. Digests are those of the mutants, so
that the contents behind them are read.
"""

import json
import os
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from checkpoints import CHECKPOINTS
from fuzz.fork_server import ForkServer
from fuzz.mutations import change_bytes

from localinfer import sessions
from localinfer.batch.input_file import detect_format, parse_requests
from localinfer.batch.job import Job, Response
from localinfer.batch.output_file import open_output
from localinfer.conversion import open_checkpoint
from localinfer.errors import LocalInferError
from localinfer.gguf import imatrix_file
from localinfer.gguf.resumable_file import find_unfinished, resumable_file
from localinfer.hub import model_registry, ollama
from quant.jit import executable_memory
from quant.jit.object_file import ObjectFile, ObjectFileError

VALUES = (
    None, True, False, 0, -1, 7, 2**31, 2**63, -(2**70), 10**400, 0.5, -1.5, 1e300, float("inf"), float("nan"), "",
    "x", "\ud800", "\x1b[2J\u202e", "a\0b", "../../x", "x" * 5000, [], {}, [[]], [{}], [7], ["x"], {"x": 7},
    {"role": "user", "content": {"a": []}}, {"keep": -3}, {"keep": 10**30},
)  # fmt: skip
PIECES = (
    b"\0", b"\n", b"\r\n", b"{", b"}", b"[" * 5000, b'"', b",", b":", b"1e999", b"NaN", b"-", b"9" * 5000, b"\xff\xfe",
    b"\xef\xbb\xbf", b"\\ud800", b"null", b"true", b"=", b"[[", b"sha256:",
)  # fmt: skip


# --- mutations ---


def nested_places(value: Any) -> list[tuple[Any, Any]]:
    """Return all pairs of a container and a key in a JSON value."""
    found, todo = [], [value]
    while todo:
        container = todo.pop()
        keys: Any = container if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], dict | list):
                todo.append(container[key])
    return found


def change_json(content: bytes, choose: Random) -> bytes:
    """Replace, remove, copy or swap nested values of a JSON document. Other content is returned unchanged."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return content
    for _ in range(choose.randint(1, 3)):
        places = nested_places(value) if isinstance(value, dict | list) else []
        if not places:
            return json.dumps(choose.choice(VALUES)).encode()
        (container, key), (other, other_key) = choose.choice(places), choose.choice(places)
        what = choose.randrange(10)
        if what < 6:
            container[key] = deepcopy(choose.choice(VALUES))
        elif what < 8:
            with suppress(RecursionError, ValueError):
                container[key] = json.loads(json.dumps(other[other_key]))
        elif isinstance(container, dict):
            del container[key]
        else:
            container.pop(key)
    return json.dumps(value).encode()


def change_lines(content: bytes, choose: Random) -> bytes:
    """Change lines of JSON, or remove, repeat or exchange lines."""
    lines = content.split(b"\n")
    for _ in range(choose.randint(1, 3)):
        at = choose.randrange(len(lines))
        what = choose.randrange(6)
        if what < 3:
            lines[at] = change_json(lines[at], choose)
        elif what == 3:
            lines[at : at + 1] = [lines[at]] * choose.choice((0, 2))
        else:
            lines.insert(choose.randrange(len(lines) + 1), choose.choice((b"", b"7", b'"x"', b"\xff", *lines)))
        lines = lines or [b""]
    return b"\n".join(lines)


def change_pieces(content: bytes, choose: Random) -> bytes:
    """Insert pieces of text at random positions, or replace bytes by them."""
    for _ in range(choose.randint(1, 4)):
        at = choose.randrange(len(content) + 1)
        content = content[:at] + choose.choice(PIECES) + content[at + choose.choice((0, 0, 1, 10)) :]
    return content


def change_numbers(content: bytes, choose: Random) -> bytes:
    """Overwrite aligned words of binary content with limits."""
    data = bytearray(content)
    for _ in range(choose.randint(1, 4)):
        size = choose.choice((1, 2, 4, 8))
        at = choose.randrange(max(1, len(data) // size)) * size
        value = choose.choice((0, 1, 2, 2**7, 2**15, 2**31, 2**63, -1, len(content), choose.getrandbits(64)))
        data[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")
    return bytes(data)


Mutate = Callable[[bytes, Random], bytes]


# --- targets ---


class Target(ABC):
    """A kind of file: `mutate` returns the content of a mutant, and `run` reads it."""

    mutations: Sequence[Mutate] = (change_json, change_json, change_pieces, change_bytes)

    def __init__(self, folder: Path) -> None:
        self.folder = folder / type(self).__name__
        self.folder.mkdir()
        self.valid = self.make()

    @abstractmethod
    def make(self) -> Sequence[bytes]:
        """Return the contents of valid files."""

    @abstractmethod
    def run(self, content: bytes, choose: Random) -> None:
        """Read a mutant. Raises LocalInferError if it is refused."""

    def mutate(self, choose: Random) -> bytes:
        """Return the content of a mutant."""
        content = choose.choice(self.valid)
        for _ in range(choose.choice((1, 1, 2))):
            content = choose.choice(self.mutations)(content, choose) if content else b"\n"
        return content

    def write(self, name: str, content: bytes) -> Path:
        """Write a file and return its path."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path


class SessionFile(Target):
    mutations = (change_lines, change_lines, change_pieces, change_bytes)

    def make(self) -> Sequence[bytes]:
        calls = [{"function": {"name": "f", "arguments": "{}"}}]
        lines: list[Any] = [
            {"localinfer": 1, "model": "smollm2", "created": "2026-11-24T10:00:00+00:00"},
            {"role": "system", "content": "You are brief."}, {"role": "user", "content": "Hello\n\nyou"},
            {"role": "assistant", "content": "Hi", "ids": [1, 2]}, {"keep": 2}, {"role": "user", "content": "Again"},
            {"role": "assistant", "content": None, "tool_calls": calls}, {"role": "tool", "content": "3"},
        ]  # fmt: skip
        return [b"".join(json.dumps(line).encode() + b"\n" for line in lines)]

    def run(self, content: bytes, choose: Random) -> None:
        os.environ["LOCALINFER_DATA_DIR"] = str(self.folder)
        (self.folder / "sessions").mkdir(mode=0o700, exist_ok=True)
        self.write("sessions/a.jsonl", content)
        assert sessions.list_names() == ["a"]
        session = sessions.open_session("a")
        assert session.title.isprintable() or session.title
        session.markdown()
        before = len(session.messages)
        session.append({"role": "user", "content": "x"})
        assert len(sessions.open_session("a").messages) == before + 1
        session.rewind(choose.randrange(before + 1))
        assert sessions.open_session("a").messages == session.messages or has_nan(session.messages)


def has_nan(value: object) -> bool:
    return "NaN" in json.dumps(value)


class BatchInput(Target):
    mutations = (change_lines, change_pieces, change_bytes)

    def make(self) -> Sequence[bytes]:
        return [
            b'"Hello"\n{"prompt": "a", "system": "b", "schema": {"type": "object"}}\nplain\n',
            b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}\n',
            b'{"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}\n',
        ]

    def run(self, content: bytes, choose: Random) -> None:
        name = choose.choice(("a", "a.jsonl", "a.txt"))
        for request in parse_requests(content, name, detect_format(content, name), raw=choose.random() < 0.5):
            assert request.digest
            assert isinstance(request.prefix_sort_key, str)


class BatchOutput(Target):
    mutations = (change_lines, change_pieces, change_bytes)
    REQUESTS = parse_requests(b'"a"\n"b"\n"c"\n', "in", "jsonl")

    def make(self) -> Sequence[bytes]:
        path = self.folder / "valid"
        with open_output(path, restart=True) as out:
            work = Job(self.REQUESTS, "01234567")
            for request in self.REQUESTS:
                work.add(Response(request, 200, {"answer": "x" * 50}), out)
        return [path.read_bytes()]

    def run(self, content: bytes, choose: Random) -> None:
        path = self.write("out", content)
        try:
            with open_output(path, restart=False) as out:
                work = Job(self.REQUESTS, "01234567")
                work.resume(out)
                for request in work.pending():
                    work.add(Response(request, 200, {}), out)
                work.sort_output(out)
        except LocalInferError:
            assert path.read_bytes() == content, "a refused file is unchanged"
            raise
        assert len(path.read_bytes().splitlines()) >= len(self.REQUESTS)


class OllamaManifest(Target):
    def make(self) -> Sequence[bytes]:
        layers, contents = [], {"model": b"GGUF" * 10, "params": b'{"num_ctx": 5, "stop": ["a"], "seed": 3}',
                                "system": b"You are brief."}  # fmt: skip
        for kind, content in contents.items():
            digest = sha256(content).hexdigest()
            self.write(f"blobs/sha256-{digest}", content)
            layers.append({"mediaType": ollama.KIND + kind, "digest": f"sha256:{digest}", "size": len(content)})
        return [json.dumps({"schemaVersion": 2, "config": {}, "layers": layers}).encode(), contents["params"]]

    def run(self, content: bytes, choose: Random) -> None:
        os.environ["OLLAMA_MODELS"] = str(self.folder)
        manifest = self.valid[0]
        if choose.random() < 0.4:  # the mutant is a layer
            old = json.loads(manifest)["layers"][1]
            new = {**old, "digest": f"sha256:{sha256(content).hexdigest()}", "size": len(content)}
            blob = self.write(f"blobs/sha256-{sha256(content).hexdigest()}", content)
            self.write("manifests/registry.ollama.ai/library/m/latest",
                       manifest.replace(json.dumps(old).encode(), json.dumps(new).encode()))  # fmt: skip
        else:
            blob = None
            self.write("manifests/registry.ollama.ai/library/m/latest", content)
        try:
            list(ollama.list_models())
            ollama.find("m")
            ollama.default_options("m")
        finally:
            if blob and blob.read_bytes() != self.valid[1]:
                blob.unlink()


class ModelRegistryFile(Target):
    mutations = (change_pieces, change_bytes)

    def make(self) -> Sequence[bytes]:
        own = b'default = "a"\n[a]\npath = "/x/m.gguf"\nabout = "b"\n[a.options]\nctx_size = 5\ntemp = 0.5\n'
        return [model_registry.shipped_registry_path().read_bytes(), own]

    def run(self, content: bytes, choose: Random) -> None:
        os.environ["LOCALINFER_CONFIG_DIR"] = str(self.folder)
        self.write("models.toml", content)
        model_registry.read_registry.cache_clear()
        for entry in model_registry.model_registry().entries.values():
            assert entry.source or entry.is_present in (True, False)


class Checkpoint(Target):
    """A checkpoint, of which one file is a mutant."""

    mutations = (change_json, change_json, change_json, change_pieces, change_bytes, change_numbers)

    def make(self) -> Sequence[bytes]:
        self.names = sorted(path.relative_to(CHECKPOINTS) for path in CHECKPOINTS.glob("*/*"))
        return [(CHECKPOINTS / name).read_bytes() for name in self.names]

    def mutate(self, choose: Random) -> bytes:
        self.number = choose.randrange(len(self.valid))
        content = self.valid[self.number]
        if self.names[self.number].suffix == ".safetensors" and choose.random() < 0.7:
            return mutated_safetensors(content, choose)
        for _ in range(choose.choice((1, 1, 2))):
            content = choose.choice(self.mutations)(content, choose) if content else b"\n"
        return content

    def run(self, content: bytes, choose: Random) -> None:
        name = self.names[self.number]
        folder = self.folder / name.parent
        if not folder.exists():
            shutil.copytree(CHECKPOINTS / name.parent, folder)
        (folder / name.name).write_bytes(content)
        try:
            source = open_checkpoint(folder)
            for tensor in choose.sample(sorted(source.tensors.values(), key=lambda each: each.name), 2):
                tensor.load()
        finally:
            shutil.copy(CHECKPOINTS / name, folder / name.name)


def mutated_safetensors(content: bytes, choose: Random) -> bytes:
    """Return a safetensors file whose header is a mutant, with the right length."""
    size = int.from_bytes(content[:8], "little")
    header = change_json(content[8 : 8 + size], choose)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


class ImatrixFile(Target):
    mutations = (change_numbers, change_bytes)

    def make(self) -> Sequence[bytes]:
        entries = {
            f"blk.{number}.attn_q.weight": imatrix_file.Entry(
                np.arange(32, dtype=np.float32).reshape(1, 32), np.array([5], np.float32)
            )
            for number in range(3)
        }
        made = imatrix_file.Imatrix(entries, ("data",), 3, 512)
        contents = []
        for name in ("a.gguf", "a.dat"):
            imatrix_file.write_imatrix(self.folder / name, made, legacy=name == "a.dat", replace=True)
            contents.append((self.folder / name).read_bytes())
        return contents

    def run(self, content: bytes, choose: Random) -> None:
        imatrix_file.read_imatrix(self.write("mutant.imatrix", content))


class ObjectFiles(Target):
    """Object files of kernels. Their code is not run."""

    mutations = (change_numbers, change_numbers, change_bytes)
    SYMBOL = "kernel"

    def make(self) -> Sequence[bytes]:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        code = """
        @table = private constant [4 x double] [double 1.0, double 2.0, double 3.0, double 4.0]
        declare ptr @memset(ptr, i32, i64)
        declare i32 @sched_yield()
        define double @kernel(ptr %a, i64 %n) {
          %b = call ptr @memset(ptr %a, i32 0, i64 %n)
          %c = call i32 @sched_yield()
          %p = getelementptr double, ptr @table, i64 %n
          %v = load double, ptr %p
          ret double %v
        }"""
        machine = llvm.Target.from_default_triple().create_target_machine(codemodel="large", reloc="static")
        small = llvm.Target.from_default_triple().create_target_machine(codemodel="small", reloc="pic")
        return [bytes(each.emit_object(llvm.parse_assembly(code))) for each in (machine, small)]

    def run(self, content: bytes, choose: Random) -> None:
        try:
            parsed = ObjectFile(content, self.SYMBOL)
            executable_memory.require_loadable(parsed)
            executable_memory.load([parsed], executable_memory.system_function)
        except ObjectFileError as error:
            raise LocalInferError(str(error)) from None


class ProgressFile(Target):
    def make(self) -> Sequence[bytes]:
        return [json.dumps({"identity": {"file": "m", "content": "5"}, "done": 3, "at": 30}).encode()]

    def run(self, content: bytes, choose: Random) -> None:
        self.write(".m.gguf.unfinished.json", content)
        self.write(".m.gguf.unfinished", bytes(choose.choice((0, 30, 64, 64, 64))))
        for unfinished in find_unfinished(self.folder):
            assert 0 <= unfinished.written_fraction <= 1
        (self.folder / "m.gguf").unlink(missing_ok=True)
        with resumable_file(self.folder / "m.gguf", 64, {"file": "m", "content": "5"}, replace=True) as file:
            assert 0 <= file.n_bytes <= 64
            assert file.steps_done >= 0
            b"".join(file.read_saved())
        assert (self.folder / "m.gguf").stat().st_size == 64


TARGETS: Sequence[type[Target]] = (
    SessionFile, BatchInput, BatchOutput, OllamaManifest, ModelRegistryFile, Checkpoint, ImatrixFile, ObjectFiles,
    ProgressFile,
)  # fmt: skip


class FileServer(ForkServer):
    """The fork server for mutants of files."""

    mutants_per_child = 1000

    def __init__(self, targets: Sequence[Target], folder: Path, findings: Path, spare_kernels: int) -> None:
        super().__init__(folder / "mutant.bin", findings, spare_kernels)
        self.targets = targets

    def write_mutant(self, choose: Random) -> tuple[Target, bytes]:
        target = choose.choice(self.targets)
        content = target.mutate(choose)
        self.mutant.write_bytes(content)
        return target, content

    def run_one(self, choose: Random) -> str:
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", RuntimeWarning)
        target, content = self.write_mutant(choose)
        try:
            target.run(content, choose)
        except LocalInferError as error:
            return str(error) or "refused"
        return ""


def make_targets(folder: Path, like: str) -> list[Target]:
    """Return the targets whose names contain `like`; without it, those that need no kernels."""
    if not like:
        return [target(folder) for target in TARGETS]
    from fuzz.media import ImageFile, SoundFile
    from fuzz.projector_files import ProjectorFile
    from fuzz.snapshots import DraftHeads, SnapshotFile
    from fuzz.videos import VideoFile

    others = (SnapshotFile, DraftHeads, ImageFile, SoundFile, ProjectorFile, VideoFile)
    wanted = [target for target in (*TARGETS, *others) if like.lower() in target.__name__.lower()]
    return [target(folder) for target in wanted]
