"""The files, models and names that command lines of llama.cpp and Ollama name, as tiny ones of ours.

    inputs = ToolInputs(work, hub)
    words = inputs.prepare(["llama-cli", "-m", "models/7B/model.gguf", "-p", "Hello"])

`prepare` writes every input under the name that the command line has for it, and replaces only what stands in
REPLACEMENTS. Each file is made once per process and linked.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import documented_files
from answering_model import answering_model
from loopback_hub import Hub
from split_files import split

from cli.arguments.compatibility import MODEL_SHORTCUTS

N_CTX = 4096
REPLACEMENTS = {"context-size": "512", "num_threads": "2", "0.0.0.0": "127.0.0.1"}  # placeholders, and all addresses
MODELFILE = "FROM ./model-f16.gguf\nPARAMETER temperature 0.5\nSYSTEM Hi.\n"
PRESETS = "[*]\nc = 512\n\n[preset]\nmodel = tiny.gguf\ntemp = 0\n"
GRAMMAR = 'root ::= "Hello there!"\n'
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
OUTPUT_FLAGS = ("-o", "--output", "--outfile")
MODEL, DRAFT = ("-m", "--model"), ("-md", "--model-draft", "--spec-draft-model")
HEADS = {  # in a command line: its model and its draft head
    "eagle3": ("eagle3-target.gguf", "eagle3-model.gguf"), "dflash": ("qwen3.5.gguf", "qwen3.5-dflash.gguf"),
    "dspark": ("qwen3.gguf", "qwen3-dspark.gguf"),
}  # fmt: skip
FILES = {  # flag: what its value names
    "--chat-template-file": "template.jinja", "--grammar-file": "list.gbnf", "--models-preset": "models.ini",
    "--models-dir": "models", "--target-model-dir": "model/", "--context-file": "text.txt",
}  # fmt: skip
HUB = ("-hf", "-hfr", "--hf-repo", "-hfd", "--hf-repo-draft")


def split_model(path: Path) -> None:
    """Write a model in three parts; `path` is the first one."""
    whole = answering_model(path.with_name(path.name.replace("-00001-of-00003", "")), n_ctx=N_CTX)
    assert len(split(whole, 8)) == 3
    whole.unlink()


def legacy_imatrix(path: Path) -> None:
    import localinfer

    model = answering_model(path.with_name("model.gguf"), type="F16", n_ctx=N_CTX)
    localinfer.imatrix(str(model), documented_files.TEXT, str(path))


def models_directory(path: Path) -> None:
    path.mkdir()
    answering_model(path / "model.gguf", n_ctx=N_CTX)


MAKERS: dict[str, Callable[[Path], object]] = {
    "answering": partial(answering_model, n_ctx=N_CTX),
    "answering-f16": partial(answering_model, type="F16", n_ctx=N_CTX),
    "answering-f32": partial(answering_model, type="F32", n_ctx=N_CTX),
    "deep-f16": partial(answering_model, type="F16", n_ctx=N_CTX, n_layer=23),
    "long.txt": partial(documented_files.text, content=documented_files.TEXT * 41),
    "split-00001-of-00003.gguf": split_model,
    "legacy.dat": legacy_imatrix,
    "models": models_directory,
    "models.ini": partial(documented_files.text, content=PRESETS),
    "list.gbnf": partial(documented_files.text, content=GRAMMAR),
    "template.jinja": partial(documented_files.text, content=TEMPLATE),
    "ollama.Modelfile": partial(documented_files.text, content=MODELFILE),
}  # fmt: skip
documented_files.MAKERS.update(MAKERS)


class ToolInputs:
    """Writes the inputs of command lines below a folder, and adds models to a hub and to models.toml."""

    def __init__(self, work: Path, hub: Hub, registry: Path) -> None:
        self.work = work
        self.hub = hub
        self.registry = registry
        self.outputs: list[Path] = []

    def prepare(self, words: list[str]) -> list[str]:
        words = [REPLACEMENTS.get(word, word) for word in words]
        words = [self.located(word) for word in words]
        self.outputs = [Path(word) for flag, word in pairs(words) if flag in OUTPUT_FLAGS and "bench" not in words[0]]
        for flag, word in pairs(words):
            self.write_value(flag, word, words)
        for word in words:
            if word in MODEL_SHORTCUTS:
                self.add_to_hub(MODEL_SHORTCUTS[word][0].removeprefix("hf:"), [])
        self.write_arguments(words)
        return words

    def located(self, word: str) -> str:
        """Expand ~ as a shell does, and move absolute paths into the folder of the test."""
        word = word.replace("~/", f"{self.work}/") if word.startswith("~/") else word
        inside = word.startswith("/") and not word.startswith(str(self.work))
        return f"{self.work}{word}" if inside else word

    def write_value(self, flag: str, word: str, words: list[str]) -> None:
        """Write the input that the value of a flag names."""
        if flag in FILES:
            self.put(FILES[flag], word)
        elif flag in MODEL + DRAFT:
            self.write_model(flag, word, words)
        elif flag in HUB:
            self.add_to_hub(word, words)
        elif flag in ("-f", "--file"):
            skips = "--chunk" in words and words[words.index("--chunk") + 1] == "512"
            self.put("ollama.Modelfile" if words[0] == "ollama" else "long.txt" if skips else "text.txt", word)
        elif flag in ("--imatrix", "--in-file"):
            self.put("legacy.dat" if word.endswith(".dat") else "imatrix.gguf", word)
        elif flag in ("--lora", "--lora-scaled"):
            for name in word.split(","):
                self.put("adapter.gguf", name.partition(":")[0])

    def write_model(self, flag: str, word: str, words: list[str]) -> None:
        if words[0] == "llama-retrieval":
            self.put("minilm.gguf", word)
        elif files := next((files for kind, files in HEADS.items() if kind in " ".join(words).lower()), ()):
            self.put(files[flag not in MODEL], word)
        elif "-00001-of-00003" in word:
            self.put_split(word)
        else:
            self.put("answering-f16" if is_full_precision(word) else "answering", word)

    def write_arguments(self, words: list[str]) -> None:
        """Write what is named without a flag: the source of a quantization or conversion, models of Ollama."""
        taken = self.values_of(words)
        named = [word for word in words[1:] if not word.startswith("-") and word not in taken]
        if words[0] == "llama-quantize":
            layers = "deep-f16" if "--prune-layers" in words else "answering-f16"
            self.put("answering" if "Q4_K_M" in named[0] else layers, named[0])
            default = Path(named[0]).parent / "ggml-model-Q4_K_M.gguf"
            self.outputs = [Path(named[1]) if named[1].endswith(".gguf") else default]
        elif words[0] == "convert_hf_to_gguf.py":
            self.put_checkpoint(named[0], words)
        elif words[0] == "ollama" and len(named) > 1:
            self.add_names(named[0], named[1:])

    def values_of(self, words: list[str]) -> set[str]:
        flags = (
            *("--imatrix", "--outfile", "--outtype", "--target-model-dir", "--tensor-type", "--include-weights", "-f"),
            *("--output-tensor-type", "--token-embedding-type", "--override-kv", "--prune-layers", "--quantize"),
        )
        return {word for flag, word in pairs(words) if flag in flags}

    def put_checkpoint(self, source: str, words: list[str]) -> None:
        name = "eagle3/" if "eagle3" in source.lower() else "checkpoint/"
        if "--remote" in words:
            folder = documented_files.made(name) / name
            self.hub.repos[source] = {path.name: path.read_bytes() for path in folder.iterdir()}
        else:
            self.put(name, source)
        if not self.outputs:
            self.outputs = [self.work / source]

    def add_names(self, command: str, names: list[str]) -> None:
        """Add the models that a command line of Ollama names. `create` and `cp` make the last one."""
        self.put("answering-f16", "model-f16.gguf")
        self.put("ollama.Modelfile", "Modelfile")
        if command == "run" and "embed" in names[0]:
            self.put("minilm.gguf", names[0])
        elif names[0].startswith("hf.co/"):
            self.add_to_hub(names[0].removeprefix("hf.co/"), [])
        elif command != "create" and ":" not in names[0] and "/" not in names[0]:
            self.add_entry(names[0])

    def add_entry(self, name: str) -> None:
        """Add a name to models.toml, for a model on the hub."""
        self.add_to_hub(f"library/{name}", [])
        with self.registry.open("a") as file:
            file.write(f'\n[models."{name}"]\nsource = "hf:library/{name}"\n')

    def add_to_hub(self, name: str, words: list[str]) -> None:
        repository, _, tag = name.partition(":")
        files = [word for flag, word in pairs(words) if flag == "-hff"] or [f"model-{(tag or 'Q4_K_M').upper()}.gguf"]
        content = (documented_files.made("answering") / "answering").read_bytes()
        self.hub.repos[repository] = dict.fromkeys(files, content)

    def put(self, name: str, where: str) -> None:
        """Link a file, or copy a folder."""
        source, target = documented_files.made(name) / name, self.work / where
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif not target.exists():
            os.link(source, target)

    def put_split(self, where: str) -> None:
        folder = documented_files.made("split-00001-of-00003.gguf")
        target = self.work / where
        target.parent.mkdir(parents=True, exist_ok=True)
        for part in folder.glob("*.gguf"):
            shutil.copy(part, target.with_name(target.name[: -len("00001-of-00003.gguf")] + part.name[-19:]))


def pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    return pairwise(words)


def is_full_precision(name: str) -> bool:
    return any(part in name.lower() for part in ("f16", "f32"))
