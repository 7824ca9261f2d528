"""`localinfer inspect` on tiny files: the report, and escaping of control characters."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import malicious_files
import numpy as np
import projector_checkpoints
import pytest
from image_processors import write_keys
from seeing_model import write_seeing_model
from tiny import CHATML, Field, tiny_gemma3, tiny_llama, tiny_qwen3moe

from cli.__main__ import dispatch
from cli.models.inspect import inspect
from cli.models.projector_report import image_rows
from localinfer import convert
from localinfer.errors import LocalInferError, UsageError
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.requirements import memory_requirements

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def report(path: Path, capsys: Capture, ctx_size: int = 0) -> str:
    """Return the printed report; check that it has no control characters and that stderr is empty."""
    inspect(path, Options(ctx_size=ctx_size), as_json=False)
    out, err = capsys.readouterr()
    assert err == ""
    assert all(line.isprintable() for line in out.split("\n"))
    return out


def json_report(path: Path, capsys: Capture, ctx_size: int = 0) -> Any:
    inspect(path, Options(ctx_size=ctx_size), as_json=True)
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def line_of(out: str, start: str) -> str:
    """Return the only line that starts with `start`, with single spaces."""
    [line] = [line for line in out.splitlines() if line.strip().startswith(start)]
    return " ".join(line.split())


def test_shows_metadata_tensors_and_types(file: Path, capsys: Capture) -> None:
    out = report(tiny_llama(file, **{"blk.0.attn_v.weight": "F16"}), capsys)
    assert line_of(out, "general.architecture") == "general.architecture llama"
    assert line_of(out, "tokenizer.ggml.add_bos_token") == "tokenizer.ggml.add_bos_token false"
    assert line_of(out, "tokenizer.ggml.merges").endswith('21 strings: "h e", "Ġ t", "Ġt he", "i n", "e r", ...')
    assert line_of(out, "tokenizer.ggml.token_type").endswith("280 int32: 3, 3, 3, 1, 1, ...")
    assert line_of(out, "blk.0.attn_v.weight") == "blk.0.attn_v.weight 128 x 256 F16 65,536 bytes"
    assert line_of(out, "F16") == "F16 1 tensors 65,536 bytes 16.00 bits a weight"
    assert line_of(out, "Q8_0").startswith("Q8_0 14 tensors")
    assert line_of(out, "Q8_0").endswith("8.50 bits a weight")


def test_shows_the_memory_of_a_context(file: Path, capsys: Capture) -> None:
    out = report(tiny_llama(file), capsys, ctx_size=96)
    memory = memory_requirements(open_gguf(file), Options(ctx_size=96))
    assert "memory for a context of 96 tokens\n" in out
    for name, n_bytes in memory.items():
        assert line_of(out, name) == f"{name} {n_bytes:,} bytes"
    assert line_of(out, "together") == f"together {sum(memory.values()):,} bytes"


def test_matrices_for_rows_of_images_are_not_active(file: Path, capsys: Capture) -> None:
    visual = {"blk.0.vis_up.weight": np.zeros((64, 256), np.float32)}
    plain = line_of(report(tiny_llama(file), capsys), "total")
    out = report(tiny_llama(file, **visual), capsys)
    assert line_of(out, "active").split()[1] == plain.split()[1]
    assert line_of(out, "total") != plain


def test_suppressed_tokens_are_shown(file: Path, capsys: Capture) -> None:
    suppressed = {"tokenizer.ggml.suppress_tokens": Field("ARRAY", [7, 5, 9], "INT32")}
    out = report(tiny_llama(file, **suppressed), capsys)
    assert line_of(out, "tokenizer.ggml.suppress_tokens").endswith("3 int32: 7, 5, 9")


def test_overridden_metadata(file: Path, capsys: Capture) -> None:
    """Other metadata are shown, and count in the memory estimate."""
    tiny_llama(file)
    dispatch(["inspect", str(file), "--json"])
    before = json.loads(capsys.readouterr().out)
    longer = "--rope-scaling", "yarn", "--rope-scale", "4", "--override-kv", "general.name=str:other"
    dispatch(["inspect", str(file), "--json", *longer])
    after = json.loads(capsys.readouterr().out)
    assert after["metadata"]["general.name"] == "other"
    assert after["metadata"]["llama.context_length"] == 4 * before["metadata"]["llama.context_length"]
    assert after["memory"]["kv"] == 4 * before["memory"]["kv"]
    with pytest.raises(UsageError, match=r"general\.name: is a string in this file, which an integer cannot override"):
        dispatch(["inspect", str(file), "--override-kv", "general.name=int:1"])


def test_experts_within_a_memory_limit(file: Path, capsys: Capture) -> None:
    tiny_qwen3moe(file, n_layer=4)
    dispatch(["inspect", str(file), "--json", "-c", "64", "--memory", "12M"])
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert memory["experts"] == 40
    assert 10 < memory["cached_experts"] < 40
    dispatch(["inspect", str(file), "-c", "64", "--memory", "12M"])
    expected = f"cached experts {memory['cached_experts']} of 40, {memory['expert_cache']:,} bytes"
    assert line_of(capsys.readouterr().out, "cached") == expected
    dispatch(["inspect", str(file), "--json", "-c", "64"])
    assert "experts" not in json.loads(capsys.readouterr().out)["memory"]


def test_a_memory_limit_of_a_dense_model(file: Path, capsys: Capture) -> None:
    dispatch(["inspect", str(tiny_llama(file)), "--json", "-c", "64", "--memory", "12M"])
    out, err = capsys.readouterr()
    assert err == "warning: memory: has no effect, because the model has no experts\n"
    assert "experts" not in json.loads(out)["memory"]


def test_active_parameters_of_a_mixture_of_experts(file: Path, capsys: Capture) -> None:
    tensors = open_gguf(tiny_qwen3moe(file)).tensors.values()
    total, memory = sum(each.n_elements for each in tensors), memory_requirements(open_gguf(file), Options())
    expert_tensors = [each for each in tensors if "_exps" in each.name]  # seven of ten experts are inactive
    out = report(file, capsys)
    assert line_of(out, "total") == f"total {total:,}"
    assert line_of(out, "active") == f"active {total - sum(each.n_elements for each in expert_tensors) * 7 // 10:,}"
    minimum = sum(memory.values()) - sum(each.nbytes for each in expert_tensors) * 7 // 10
    assert line_of(out, "at least") == f"at least {minimum:,} bytes"
    facts = json_report(file, capsys)
    assert (facts["parameters"]["total"], facts["memory"]["least"]) == (total, minimum)


def test_quantized_kv_cache_takes_less_memory(file: Path, capsys: Capture) -> None:
    dispatch(["inspect", str(tiny_llama(file)), "-c", "128", "-ctk", "q8_0", "-ctv", "q4_0"])
    n_vectors = 2 * 2 * 128  # layers, key heads, tokens
    assert line_of(capsys.readouterr().out, "kv") == f"kv {n_vectors * 64 // 32 * (34 + 18):,} bytes"
    with pytest.raises(UsageError, match="--cache-type-v: must be f32 or f16 or q8_0 or q4_0, not q5"):
        dispatch(["inspect", str(file), "--cache-type-v", "q5"])


def test_shows_the_chat_template_and_its_hash(file: Path, capsys: Capture) -> None:
    template = CHATML + "\nsecond line\x1b[2J\r[red]"
    out = report(tiny_llama(file, **{"tokenizer.chat_template": template}), capsys)
    title, *lines = out[out.index("chat template, ") :].splitlines()
    assert title == f"chat template, sha256 {sha256(template.encode()).hexdigest()}"
    assert lines == [f"  {CHATML}", r"  second line\x1b[2J\r[red]"]


def test_shows_named_templates(file: Path, capsys: Capture) -> None:
    named = {"tokenizer.chat_template.rag": "{{ 1 }}", "tokenizer.chat_templates": Field("ARRAY", ["rag"], "STRING")}
    out = report(tiny_llama(file, **named), capsys)
    assert out.endswith(f"\nchat template rag, sha256 {sha256(b'{{ 1 }}').hexdigest()}\n  {{{{ 1 }}}}\n")


def test_control_characters_are_escaped(file: Path, capsys: Capture) -> None:
    """Escape sequences, markup, line breaks and invalid UTF-8 are shown and have no effect."""
    unusual = {
        "general.name": "\x1b]8;;http://x\x07[link=http://x][red]here[/]\n\u202eevil",
        "general.author": b"\xff\xfe",
        "general.\x9b31m": 1,
        "general.tags": Field("ARRAY", ["a\nb", "\x1b[31m"], "STRING"),
    }
    out = report(tiny_llama(file, **unusual), capsys)
    name = r"\x1b]8;;http://x\x07[link=http://x][red]here[/]\n\u202eevil"
    assert line_of(out, "general.name") == f"general.name {name}"
    assert line_of(out, "general.author") == r"general.author \xff\xfe"
    assert line_of(out, r"general.\x9b31m") == r"general.\x9b31m 1"
    assert line_of(out, "general.tags") == r'general.tags 2 strings: "a\nb", "\x1b[31m"'


def test_json_has_the_same_facts(file: Path, capsys: Capture) -> None:
    metadata = {
        "odd.nan": float("nan"),
        "odd.bytes": b"\xff\x1b",
        "odd.list": Field("ARRAY", [0.5] * 9, "FLOAT32"),
    }
    facts = json_report(tiny_gemma3(file, **metadata), capsys, ctx_size=128)
    f = open_gguf(file)
    assert facts["metadata"]["gemma3.attention.sliding_window"] == 16
    assert facts["metadata"]["odd.nan"] == "nan"
    assert facts["metadata"]["odd.bytes"] == "\\xff\x1b"
    assert facts["metadata"]["odd.list"] == {"array": "float32", "length": 9, "first": [0.5] * 5}
    assert facts["metadata"]["tokenizer.ggml.tokens"]["first"] == [
        "<pad>",
        "<eos>",
        "<bos>",
        "<unk>",
        "<start_of_turn>",
    ]
    assert facts["chat_template_sha256"] is None
    assert [tensor["name"] for tensor in facts["tensors"]] == list(f.tensors)
    assert facts["tensors"][0]["shape"] == list(next(iter(f.tensors.values())).shape)
    assert sum(fraction["bytes"] for fraction in facts["types"].values()) == sum(t.nbytes for t in f.tensors.values())
    memory = memory_requirements(f, Options(ctx_size=128))
    assert facts["memory"] == {"ctx_size": 128, **memory, "total": sum(memory.values()), "least": sum(memory.values())}


def test_bytes_after_the_data_are_reported(file: Path, capsys: Capture) -> None:
    assert "after the last tensor" not in report(tiny_llama(file), capsys)
    with file.open("ab") as stream:
        stream.write(bytes(1 << 20))
    assert "1,048,576 bytes after the last tensor are unused" in report(file, capsys)


def test_unsupported_architecture_is_shown(file: Path, capsys: Capture) -> None:
    tiny_llama(file, **{"general.architecture": "a new\x1b one"})
    out = report(file, capsys)
    assert r"general.architecture" in line_of(out, "not known")
    assert line_of(out, "output_norm.weight") == "output_norm.weight 256 F32 1,024 bytes"
    assert json_report(file, capsys)["memory"] is None


@pytest.mark.parametrize("attack", malicious_files.REJECTED[::7], ids=lambda attack: attack.name)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_broken_file_prints_nothing(
    attack: malicious_files.Rejected, as_json: bool, file: Path, capsys: Capture
) -> None:
    file.write_bytes(attack.content)
    with pytest.raises(LocalInferError):
        inspect(file, Options(), as_json)
    assert capsys.readouterr() == ("", "")


def test_invalid_model_prints_nothing(file: Path, capsys: Capture) -> None:
    tiny_llama(file, **{"llama.attention.head_count": 0})
    with pytest.raises(LocalInferError, match=r"llama\.attention\.head_count"):
        inspect(file, Options(), as_json=False)
    assert capsys.readouterr() == ("", "")


def test_the_context_comes_from_flag_or_environment(
    file: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_llama(file)
    monkeypatch.setenv("LOCALINFER_CTX_SIZE", "48")
    dispatch(["inspect", str(file)])
    assert "a context of 48 tokens" in capsys.readouterr().out
    dispatch(["inspect", str(file), "--ctx-size", "32"])
    assert "a context of 32 tokens" in capsys.readouterr().out
    for wrong in ("-1", "1e3", "abc", "99999999999"):
        with pytest.raises(UsageError, match="--ctx-size"):
            dispatch(["inspect", str(file), "--ctx-size", wrong])


def test_without_mmap_the_whole_file_takes_memory(file: Path, capsys: Capture) -> None:
    size = tiny_qwen3moe(file).stat().st_size
    dispatch(["inspect", str(file), "--no-mmap", "--json"])
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert memory["weights"] == size
    assert memory["least"] == memory["total"]


@pytest.mark.parametrize(
    ("name", "start", "row"),
    [
        ("gemma3", "tokens of", "tokens of an image of 56 x 56 1"),
        ("qwen2vl", "tokens of", "tokens of an image of 560 x 560 400"),
        ("idefics3", "tokens of", "tokens of an image of 56 x 56 68 in 17 parts"),
        ("qwen2audio", "mel bands", "mel bands 80"),
    ],
)
def test_encoder(name: str, start: str, row: str, file: Path, capsys: Capture, tmp_path: Path) -> None:
    description = projector_checkpoints.descriptions()[name]
    checkpoint = projector_checkpoints.write_checkpoint(tmp_path / "checkpoint", description)
    out = report(convert(checkpoint, file, mmproj=True), capsys)
    assert line_of(out, start) == row
    assert line_of(out, "embedding length of the text model") == "embedding length of the text model 64"
    found = json_report(file, capsys)
    assert found["encoder"]["layers"] == "4"
    assert found["memory"]["weights"] == sum(tensor["bytes"] for tensor in found["tensors"])


def test_encoder_with_invalid_keys(file: Path) -> None:
    f = open_gguf(write_keys(file, "gemma3", patch_size=0))
    assert list(image_rows(f)) == [("preprocessing", "clip.vision.patch_size: must be from 1 to 256, not 0")]


def test_points_of_a_model(file: Path, capsys: Capture) -> None:
    tiny_qwen3moe(file)
    assert dispatch(["inspect", str(file), "--points"]) == 0
    out = capsys.readouterr().out
    assert line_of(out, "blk.*.resid_post") == "blk.*.resid_post 0-1 256 residual stream after the layer"
    assert line_of(out, "blk.*.attn_weights").startswith("blk.*.attn_weights 0-1 4 x tokens attention weights")
    assert line_of(out, "logits").startswith("logits 280 logits")
    assert dispatch(["inspect", str(file), "--points", "--json"]) == 0
    points = json.loads(capsys.readouterr().out)
    assert points["blk.1.ffn_gate_inp"]["shape"] == [open_gguf(file).get("qwen3moe.expert_count", int)]
    assert all(point["description"] for point in points.values())


def test_points_of_a_projector(tmp_path: Path, capsys: Capture) -> None:
    model = write_seeing_model(tmp_path)
    named = tmp_path / "other" / "projector.gguf"
    named.parent.mkdir()
    (tmp_path / "mmproj-gemma3.gguf").rename(named)
    assert dispatch(["inspect", str(model), "--points"]) == 0
    assert "v.blk" not in capsys.readouterr().out
    assert dispatch(["inspect", str(model), "--points", "--mmproj", str(named)]) == 0
    out = capsys.readouterr().out
    assert line_of(out, "v.blk.*.resid_post") == "v.blk.*.resid_post 0-1 32 residual stream after the layer"
    assert line_of(out, "v.output") == "v.output 64 rows of an image that enter the language model"
    assert line_of(out, "blk.*.resid_post") == "blk.*.resid_post 0-6 64 residual stream after the layer"
    with pytest.raises(UsageError, match="belongs to gemma3 models, not to llama"):
        dispatch(["inspect", str(tiny_llama(tmp_path / "llama.gguf")), "--points", "--mmproj", str(named)])


def test_points_are_one_part(file: Path) -> None:
    with pytest.raises(UsageError, match="--template and --points: only one of them can be used"):
        dispatch(["inspect", str(tiny_llama(file)), "--points", "--template"])


def test_tokens_of_tiles_and_the_whole_image(file: Path) -> None:
    f = open_gguf(write_keys(file, "deepseekocr"))
    assert list(image_rows(f)) == [("tokens of an image of 1024 x 1024", "656 in 5 parts")]
