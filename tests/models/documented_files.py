"""The files that the documentation names, as tiny models and short texts.

    write("model.gguf", folder)     # writes folder/model.gguf
    write("path/to/checkpoint/", folder)

`write` makes each file once per process and copies it.
"""

import atexit
import gzip
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import parakeet_checkpoints
import parakeet_files
import projector_checkpoints
import reference_models
import reranker_checkpoints
import sentence_transformers_files
import separate_heads
import sound_projectors
from checkpoints import CHECKPOINTS, as_f32, as_type, edit_json
from hearing_model import speech, wav, write_hearing_model
from locations import DATA, TESTS
from lora_adapter import control_vector, lora_adapter
from made_videos import make_video
from seeing_model import picture, write_seeing_model
from split_files import split
from tiny import Field, tiny_gemma3, tiny_llama, tiny_qwen2, tiny_qwen3moe
from watching_model import write_watching_model

N_CTX = 4096
CHAT_TEMPLATE = (  # with a list of tools, a switch for reasoning, and a reasoning effort
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if reasoning_effort %}Effort: {{ reasoning_effort }}\n{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
SCHEMA = {
    "type": "object", "properties": {"title": {"type": "string", "maxLength": 8}}, "required": ["title"],
    "additionalProperties": False,
}  # fmt: skip
MESSAGES = [{"role": role, "content": "Hello"} for role in ("user", "assistant", "user")]
TOOLS = [{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]
MCP_SERVERS = {  # its tools are others; a name of --mcp-allow must only have the right server
    "mcpServers": {"weather": {"command": sys.executable, "args": [str(TESTS / "harness" / "raw_mcp_server.py")]}}
}
HELLASWAG = {"activity_label": "Skating", "ctx_a": "A man skates.", "ctx_b": "he", "label": 1, "endings": list("abcd")}
MATHS = {"question": "1 + 1?", "answer": "#### 2"}
PROGRAM = {"prompt": "def one():\n    return 1\n", "entry_point": "one", "test": "def check(function):\n    pass\n"}
REQUESTS = [{"custom_id": "a", "messages": [{"role": "user", "content": "Hello"}]}, {"prompt": "Hi", "temperature": 0}]
ABOUT_A_PHOTO = {"messages": [{"role": "user", "content": [
    {"type": "image_url", "image_url": {"url": "file://cat.jpg"}}, {"type": "text", "text": "What is this?"},
]}]}  # fmt: skip
TEXT = (DATA / "varied.txt").read_text(encoding="utf-8")


def text_model(path: Path, seed: int = 0, type: str = "Q8_0") -> Path:
    metadata = {"general.name": "tiny", "tokenizer.chat_template": Field("STRING", CHAT_TEMPLATE)}
    return tiny_llama(path, seed=seed, type=type, n_ctx=N_CTX, **metadata)


def tool_model(path: Path) -> Path:
    return tiny_qwen2(path, n_ctx=N_CTX, **{"tokenizer.chat_template": Field("STRING", CHAT_TEMPLATE)})


def split_model(path: Path) -> None:
    """Write three parts of a model. The name of `path` is that of the first one."""
    whole = text_model(path.with_name(path.name.replace("-00001-of-00003", "")))
    assert len(split(whole, 7)) == 3
    whole.unlink()


def seeing_model(path: Path) -> None:
    """Write a model and its projector."""
    write_seeing_model(path.parent, n_ctx=N_CTX).rename(path)
    (path.parent / "mmproj-gemma3.gguf").rename(path.with_name(f"mmproj-{path.name}"))


def watching_model(path: Path) -> None:
    """Write a model that was trained for videos, and its projector."""
    write_watching_model(path.parent, n_ctx=N_CTX).rename(path)
    (path.parent / "mmproj-internvl.gguf").rename(path.with_name(f"mmproj-{path.name}"))


def video(path: Path) -> None:
    path.write_bytes(make_video())


def photos(path: Path) -> None:
    path.mkdir()
    image(path / "cat.jpg")


def image(path: Path) -> None:
    path.write_bytes(picture())


def encoder(path: Path) -> Path:
    return as_f32(reference_models.checkpoint("bert", path.parent / "bert"), path)


def recurrent_model(path: Path) -> Path:
    return as_f32(reference_models.checkpoint("mamba", path.parent / "mamba"), path)


def diffusion_checkpoint(path: Path) -> Path:
    made = reference_models.checkpoint("llada", path.parent).rename(path)
    edit_json(path / "config.json", lambda config: config.update(max_sequence_length=N_CTX))
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return made


def diffusion_model(path: Path) -> Path:
    return as_type(diffusion_checkpoint(path.parent / "checkpoint"), path, "Q8_0")


def encoder_decoder_checkpoint(path: Path) -> Path:
    return reference_models.checkpoint("t5-gated", path.parent).rename(path)


def encoder_decoder(path: Path) -> Path:
    return as_type(encoder_decoder_checkpoint(path.parent / "t5-checkpoint"), path, "Q8_0")


def importance_matrix(path: Path) -> None:
    import localinfer

    with tempfile.TemporaryDirectory() as folder:
        localinfer.imatrix(str(text_model(Path(folder) / "model.gguf", type="F16")), TEXT, str(path))


def text(path: Path, content: str = TEXT) -> None:
    path.write_text(content, encoding="utf-8")


def values(path: Path, value: object) -> None:
    text(path, json.dumps(value))


def lines(path: Path, objects: list[dict[str, object]]) -> None:
    text(path, "".join(json.dumps(each) + "\n" for each in objects))


def checkpoint(path: Path) -> None:
    shutil.copytree(CHECKPOINTS / "llama", path)
    edit_json(path / "config.json", lambda config: config.update(max_position_embeddings=N_CTX))


def head_target(name: str, path: Path) -> Path:
    """Write the checkpoint of the model for which a draft head was made, with a chat template."""
    made = reference_models.checkpoint(separate_heads.read_description(name)["model"], path.parent / "target")
    (made / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return made.rename(path)


def head_target_model(name: str, path: Path) -> Path:
    return as_f32(head_target(name, path.parent / "model"), path)


def head_checkpoint(name: str, path: Path) -> None:
    separate_heads.checkpoint(name, path.parent / "head").rename(path)


def head_model(name: str, path: Path) -> Path:
    head = separate_heads.checkpoint(name, path.parent)
    return as_type(head, path, "F32", target=head_target(name, path.parent / "model"))


def qwen3_reranker(path: Path) -> Path:
    reference, tokens, control, _ = reranker_checkpoints.FAMILIES["Tiny-Qwen3-Reranker"]
    return reranker_checkpoints.checkpoint(reference, path, tokens, control)


def qwen3_reranker_model(path: Path) -> None:
    as_f32(qwen3_reranker(path.parent / "Qwen3-Reranker"), path)


def list_reranker_model(path: Path) -> None:
    as_f32(reranker_checkpoints.list_reranker(path.parent / "list-reranker"), path)


def vision_checkpoint(path: Path) -> None:
    projector_checkpoints.write_checkpoint(path, projector_checkpoints.descriptions()["gemma3"])


def hearing_model(path: Path) -> None:
    write_hearing_model(path.parent).rename(path)
    (path.parent / "mmproj-ultravox.gguf").rename(path.with_name(f"mmproj-{path.name}"))


def sound(path: Path) -> None:
    path.write_bytes(wav(speech(6.0)))


def models_directory(path: Path) -> None:
    path.mkdir()
    text_model(path / "small.gguf")


MAKERS: dict[str, Callable[[Path], object]] = {
    "model.gguf": text_model, "path/to/model.gguf": text_model, "a.gguf": text_model,
    "large.gguf": text_model, "b.gguf": partial(text_model, seed=1), "small.gguf": partial(text_model, seed=1),
    "smollm2": text_model, "gemma3-270m": partial(tiny_gemma3, n_ctx=N_CTX),
    "model-f16.gguf": partial(text_model, type="F16"),
    "model-00001-of-00003.gguf": split_model, "name-00001-of-00003.gguf": split_model,
    "mixture.gguf": partial(tiny_qwen3moe, n_layer=4, n_ctx=N_CTX),
    "qwen.gguf": tool_model, "minilm.gguf": encoder, "bge-m3.gguf": encoder,
    "bge-reranker-v2-m3.gguf": lambda path: as_f32(DATA / "reranker", path),
    "embeddinggemma.gguf": lambda path: as_f32(sentence_transformers_files.encoder(path.parent / "prompts"), path),
    "Qwen3-Reranker-0.6B/": qwen3_reranker, "qwen3-reranker.gguf": qwen3_reranker_model,
    "jina-reranker-v3/": reranker_checkpoints.list_reranker, "jina-reranker-v3.gguf": list_reranker_model,
    "path/to/checkpoint/": checkpoint, "checkpoint/": checkpoint,
    "plm-checkpoint/": lambda path: reference_models.checkpoint("plm", path.parent).rename(path),
    "flan-t5-checkpoint/": encoder_decoder_checkpoint, "flan-t5-q8_0.gguf": encoder_decoder,
    "llada-checkpoint/": diffusion_checkpoint, "llada-q8_0.gguf": diffusion_model,
    "gemma-3-4b-it/": vision_checkpoint, "eagle3/": partial(head_checkpoint, "eagle3"),
    "model/": partial(head_target, "eagle3"), "eagle3-target.gguf": partial(head_target_model, "eagle3"),
    "eagle3-model.gguf": partial(head_model, "eagle3"), "gemma-4.gguf": partial(head_target_model, "gemma4-assistant"),
    "gemma-4-assistant/": partial(head_checkpoint, "gemma4-assistant"),
    "gemma-4-assistant.gguf": partial(head_model, "gemma4-assistant"),
    "qwen3.5/": partial(head_target, "dflash"), "qwen3.5.gguf": partial(head_target_model, "dflash"),
    "qwen3.5-dflash/": partial(head_checkpoint, "dflash"), "qwen3.5-dflash.gguf": partial(head_model, "dflash"),
    "qwen3/": partial(head_target, "dspark"), "qwen3.gguf": partial(head_target_model, "dspark"),
    "qwen3-dspark/": partial(head_checkpoint, "dspark"), "qwen3-dspark.gguf": partial(head_model, "dspark"),
    "deepseek-v4/": lambda path: separate_heads.checkpoint_with_model("dspark-deepseek4", path.parent).rename(path),
    "voxtral.gguf": hearing_model, "mamba.gguf": recurrent_model,
    "parakeet.gguf": partial(parakeet_files.write_model, "tdt"),
    "parakeet-checkpoint/": partial(parakeet_checkpoints.write_checkpoint, "tdt"),
    "mmproj.gguf": lambda path: sound_projectors.write("ultravox", path.parent).rename(path),
    **dict.fromkeys(("meeting.mp3", "interview.wav", "monday.flac", "tuesday.flac", "talk.wav"), sound),
    "models/": models_directory, "imatrix.gguf": importance_matrix, "adapter.gguf": lora_adapter,
    "template.jinja": lambda path: text(path, CHAT_TEMPLATE),
    "qwen3-vl.gguf": watching_model, "clip.mp4": video,
    "other-adapter.gguf": partial(lora_adapter, seed=1),
    "vector.gguf": lambda path: control_vector(path, {1: np.ones(256, np.float32)}),
    "happy.txt": partial(text, content="I feel wonderful today\nWhat a nice day\n"),
    "sad.txt": partial(text, content="I feel terrible today\nWhat a bad day\n"),
    "vision.gguf": seeing_model, "cat.jpg": image, "chart.png": image, "page.png": image,
    "photos.jsonl": partial(lines, objects=[ABOUT_A_PHOTO]), "photos/": photos,
    "prompt.txt": partial(text, content=TEXT[:200]), "manual.txt": partial(text, content=TEXT[:100]),
    "documents.txt": partial(text, content="It is a bear.\nIt is a fish.\n"),
    "manual-and-question.txt": partial(text, content=TEXT[:120]),
    "text.txt": text, "calibration.txt": text, "wiki.test.raw": text,
    "Modelfile": partial(text, content="FROM smollm2\nPARAMETER temperature 0.7\nSYSTEM You are Mario.\n"),
    "sentences.txt": partial(text, content="A dog runs.\nAn animal moves.\n"),
    "questions.txt": partial(text, content="Who?\nWhat?\n"),
    "prompts.jsonl": partial(lines, objects=REQUESTS),
    "hellaswag_val.jsonl": partial(lines, objects=[HELLASWAG] * 3),
    "test.jsonl": partial(lines, objects=[MATHS]), "train.jsonl": partial(lines, objects=[MATHS] * 5),
    "anatomy_test.csv": partial(text, content="Why?,1,2,3,4,A\n"),
    "anatomy_dev.csv": partial(text, content="Why?,1,2,3,4,B\n" * 5),
    "winogrande.csv": partial(text, content="0,It was _ who won.,he,she,2\n"),
    "HumanEval.jsonl.gz": lambda path: path.write_bytes(gzip.compress(json.dumps(PROGRAM).encode())),
    "chat.json": partial(values, value=MESSAGES), "tools.json": partial(values, value=TOOLS),
    "recipe.json": partial(values, value={"base": "Q4_K_M", "types": {"ffn_down": "Q5_K"}}),
    "book.json": partial(values, value=SCHEMA), "servers.json": partial(values, value=MCP_SERVERS),
}  # fmt: skip


@cache
def library() -> Path:
    """Return the folder of the files that this process has made, which is removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="documented-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def made(name: str) -> Path:
    """Make the files of a name in a folder of their own, and return that folder."""
    folder = library() / name.replace("/", "_")
    path = folder / name
    path.parent.mkdir(parents=True)
    MAKERS[name](path)
    return folder


def write(name: str, folder: Path) -> None:
    """Write the file of this name, and those that belong to it, below `folder`."""
    shutil.copytree(made(name), folder, dirs_exist_ok=True)


def write_as(name: str, path: Path) -> None:
    """Write the file of this name to another path."""
    shutil.copy(made(name) / name, path)
