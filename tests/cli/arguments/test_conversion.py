"""Command lines of convert_hf_to_gguf.py and llama-export-lora as those of `quantize`."""

from pathlib import Path

import pytest

from cli.app import COMMANDS
from cli.arguments.commands import resolve_command
from localinfer.errors import UsageError


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("dir --outfile m.gguf --outtype q8_0", "quantize dir m.gguf Q8_0"),
        ("--outfile=m-{ftype}.gguf --outtype=f16 dir", "quantize dir m-f16.gguf F16"),
        ("dir", "quantize dir BF16"),
        ("half", "quantize half F16"),
        ("dir --outtype auto --no-lazy", "quantize dir BF16 --no-lazy"),
        ("dir --model-name Tiny", "quantize dir BF16 --override-kv general.name=str:Tiny"),
        ("head --target-model-dir dir --remote", "quantize head BF16 --target-model-dir dir --remote"),
        ("--help", "quantize --help"),
    ],
)
def test_conversion(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: str, meant: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").write_text('{"torch_dtype": "float16"}')
    assert resolve_command(["convert_hf_to_gguf.py", *typed.split()], COMMANDS) == meant.split()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("-m m.gguf -o out.gguf --lora a.gguf,b.gguf", "quantize m.gguf out.gguf COPY --lora a.gguf,b.gguf"),
        ("-m m.gguf --lora a.gguf", "quantize m.gguf ggml-lora-merged-f16.gguf COPY --lora a.gguf"),
        ("--model=m --output o --lora-scaled a 0.5", "quantize m o COPY --lora-scaled a:0.5"),
        ("-m m -o o --lora-scaled a:1,b:2 --lora c", "quantize m o COPY --lora-scaled a:1,b:2 --lora c"),
        ("-h", "quantize --help"),
    ],
)
def test_export_of_adapters(typed: str, meant: str) -> None:
    assert resolve_command(["llama-export-lora", *typed.split()], COMMANDS) == meant.split()


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("convert_hf_to_gguf.py --outtype f16", "requires one checkpoint directory"),
        ("convert_hf_to_gguf.py a b", "requires one checkpoint directory"),
        ("convert_hf_to_gguf.py a --outfile", "--outfile: missing value"),
        ("llama-export-lora --lora a", "export-lora: requires -m FILE"),
        ("llama-export-lora -m", "-m: missing value"),
    ],
)
def test_mistakes(typed: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_command(typed.split(), COMMANDS)
    assert problem in str(caught.value)
