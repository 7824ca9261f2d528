"""Compares quantized files of localinfer and of IST-DASLab's gptq-gguf-toolkit, which also writes GGUF with GPTQ.

    git clone https://github.com/IST-DASLab/gptq-gguf-toolkit
    python tests/benchmarks/accuracy/gptq_gguf_toolkit.py gptq-gguf-toolkit qwen2.5-coder-1.5b --types Q2_K,Q3_K,Q4_K

Both read the same model in F32 (prepared_model.py), the same tokens for calibration, and give the same type to the same
matrices: those of the blocks whose rows are a multiple of 256 weights, because the toolkit has only k-quants. All other
tensors remain in F32 in both files, so their sizes are equal. The toolkit reads a checkpoint, which transformers makes
from the GGUF file. Its quantizer runs as it is, on the CPU in F32, with the parameters of its run_quant.sh, and its own
functions pack the blocks. A row has the mean of KL(source || file) in nats for each kind of text, on texts that were
not used for calibration (divergence.py), their geometric mean, and the ratio to the toolkit, below 1 if the file is
better. Prints Markdown. Needs torch, transformers, tqdm and gguf; without them or the toolkit it prints a reason and
does nothing.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[3])]

from calibration import KINDS  # noqa: E402
from prepared_model import PreparedModel  # noqa: E402
from quantizers import run_localinfer  # noqa: E402
from ratios import geometric_mean, mean_of  # noqa: E402

from localinfer import paths  # noqa: E402
from localinfer.gguf.gguf_source import from_gguf  # noqa: E402
from localinfer.gguf.reader import open_gguf  # noqa: E402
from localinfer.gguf.source import Field  # noqa: E402
from localinfer.quantization.calibration_data import read_calibration_data  # noqa: E402
from localinfer.quantization.quantize import OutputOptions, make_encoder_factory, quantize  # noqa: E402
from localinfer.quantization.rows import Bytes  # noqa: E402
from quant.ggml import TYPE_NUMBERS  # noqa: E402

TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
BLOCK = 256  # weights in a block of the k-quants
# Names of matrices in a checkpoint and in a GGUF file.
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
# As in quant/gptq/run_quant.sh of the toolkit.
PARAMETERS = {
    "rel_damp": 0.01, "block_size": 128, "act_order": False, "static_groups": False,
    "quant_scale": "absmax", "rmin": -1.0, "rdelta": 0.1, "nstep": 20, "verbose": False,
}  # fmt: skip


class Bench(PreparedModel):
    """One model, its calibration data, and the matrices that both programs quantize."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(
            arguments.model, arguments.work, threads=arguments.threads, eval_chunks=arguments.eval_chunks
        )
        self.count, text = self.calibration_text(arguments.chunks)
        self.text, self.imatrix = self.calibration_files(arguments.chunks)
        self.tokens = read_calibration_data(self.source, text, "text", self.count).chunks
        tensors = from_gguf(self.source).tensors
        self.matrices = [
            name for name, tensor in tensors.items()
            if name.startswith("blk.") and name.split(".")[2] in NAMES.values() and tensor.shape[-1] % BLOCK == 0
        ]  # fmt: skip

    def recipe(self, type_name: str) -> Path:
        """Return a recipe file of localinfer with this type for the matrices."""
        path = self.folder / f"{self.name}-toolkit-{type_name}.json"
        path.write_text(json.dumps({"types": dict.fromkeys(self.matrices, type_name)}), encoding="utf-8")
        return path


# --- the quantizers ---


def with_imatrix(bench: Bench, type_name: str, out: Path) -> None:
    run_localinfer("quantize", bench.source, out, "--recipe", bench.recipe(type_name), "--imatrix", bench.imatrix,
                   "--force")  # fmt: skip


def with_covariances(bench: Bench, type_name: str, out: Path) -> None:
    run_localinfer("quantize", bench.source, out, "--recipe", bench.recipe(type_name), "--calibrate", bench.text,
                   "--calibrate-chunks", str(bench.count), "--force")  # fmt: skip


def with_toolkit(bench: Bench, type_name: str, out: Path) -> None:
    """Quantize with the toolkit, whose modules are importable."""
    with TemporaryDirectory(dir=bench.folder) as folder:
        run_toolkit(bench, type_name, Path(folder))
        packed = pack(bench, type_name, Path(folder))
    source = from_gguf(bench.source)
    number = TYPE_NUMBERS[type_name]
    tensors = {
        name: replace(tensor, type=number, load=partial(packed.__getitem__, name)) if name in packed else tensor
        for name, tensor in source.tensors.items()
    }
    quantize(replace(source, tensors=tensors), out, {name: tensor.type for name, tensor in tensors.items()},
             encoder_factory=make_encoder_factory("normal", {}), options=OutputOptions(replace=True))  # fmt: skip


def run_toolkit(bench: Bench, type_name: str, folder: Path) -> None:
    """Run the toolkit's quantizer, which writes one file of codes and scales for each matrix."""
    import torch
    from src.quant_utils import GGMLQuantizationType
    from src.quantizer import Quantizer
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(bench.threads)
    model = AutoModelForCausalLM.from_pretrained(
        str(bench.folder), gguf_file=bench.source.name, dtype=torch.float32, attn_implementation="eager"
    )
    quantizer = Quantizer(
        model.eval(),
        data_loader=[([], {"input_ids": torch.from_numpy(chunk[None].astype(np.int64))}) for chunk in bench.tokens],
        quantizable_modules=f"^({'|'.join(map(module_name, bench.matrices))})$",
        quantizer_kwargs=PARAMETERS,
        pre_block_modules=["model.embed_tokens"],
        block_modules="model.layers",
        post_block_modules=[],
        device=torch.device("cpu"),
        save_dir=str(folder),
        verbose=True,
    )
    quantizer.quantize({name.split(".")[1]: GGMLQuantizationType[type_name] for name in NAMES})


def pack(bench: Bench, type_name: str, folder: Path) -> dict[str, Bytes]:
    """Return the blocks of each matrix as the toolkit packs them, in the order of rows of the GGUF file."""
    import torch
    from src import packing_utils

    pack_blocks = getattr(packing_utils, f"pack_{type_name.replace('_', '')}")
    names = ["qweight", "super_group_scale", "group_scale_quant"]
    names += ["super_group_zero", "group_zero_quant"] if type_name in ("Q2_K", "Q4_K", "Q5_K") else []
    fields = from_gguf(bench.source).fields
    packed = {}
    for name in bench.matrices:
        saved = torch.load(folder / module_name(name) / "data.pth", weights_only=True)
        rows: Bytes = np.asarray(pack_blocks(*(saved[each] for each in names)))
        packed[name] = to_gguf_rows(fields, name, rows).reshape(-1)
    return packed


def to_gguf_rows(fields: Mapping[str, Field], name: str, rows: Bytes) -> Bytes:
    """Return the rows of a matrix of a checkpoint, (rows, row bytes), in the order of the GGUF file.

    In files of the architecture "llama", the rows of the two halves of each head's queries and keys take turns.
    """
    short = name.split(".")[2]
    if fields["general.architecture"].value != b"llama" or short not in ("attn_q", "attn_k"):
        return rows
    heads = fields["llama.attention.head_count" + "_kv" * (short == "attn_k")].value
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def module_name(name: str) -> str:
    """Return the name in a checkpoint of a matrix of a GGUF file, "blk.3.attn_q.weight" for example."""
    _, layer, short, _ = name.split(".")
    [module] = [module for module, other in NAMES.items() if other == short]
    return f"model.layers.{layer}.{module}"


# --- rows of the table ---


def missing(toolkit: Path) -> str:
    """Return why the toolkit cannot run, or an empty string."""
    folder = toolkit / "quant" / "gptq"
    if not (folder / "src" / "quantizer.py").exists():
        return f"{toolkit} has no quant/gptq/src/quantizer.py"
    sys.path.insert(0, str(folder))
    try:
        import src.packing_utils
        import src.quantizer  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as problem:
        return str(problem)
    return ""


class Result(NamedTuple):
    """The mean divergence of each kind of text and their geometric mean, the size of the matrices in bytes, and the
    time to write the file."""

    means: dict[str, float]
    all: float
    size: int
    seconds: float


def measure(bench: Bench, make: Callable[[Bench, str, Path], None], type_name: str) -> Result:
    """Write a file, measure it and remove it."""
    out = bench.folder / f"{bench.name}-toolkit-{type_name}-{os.getpid()}.gguf"
    begin = time.perf_counter()
    try:
        make(bench, type_name, out)
        seconds = time.perf_counter() - begin
        found, tensors = bench.divergence_evaluator(out), open_gguf(out).tensors
        means = {kind: mean_of(values) for kind, values in found.items()}
        size = sum(tensors[name].data.nbytes for name in bench.matrices)
        return Result(means, geometric_mean(found), size, seconds)
    finally:
        out.unlink(missing_ok=True)


def main() -> None:
    """Print a row for each type and quantizer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("toolkit", type=Path, help="a checkout of the toolkit")
    parser.add_argument("model", help="name of a downloaded model, or a path")
    parser.add_argument("--types", type=lambda text: text.split(","), default=["Q2_K", "Q3_K", "Q4_K"])
    parser.add_argument("--chunks", type=int, default=16, help="chunks of 512 tokens for calibration (default: 16)")
    parser.add_argument("--eval-chunks", type=int, default=2, help="chunks of each evaluation text (default: 2)")
    parser.add_argument("--work", type=Path, default=paths.cache_root() / "quality", help="default: %(default)s")
    parser.add_argument("-t", "--threads", type=int, default=2, help="default: 2")
    arguments = parser.parse_args()
    if reason := missing(arguments.toolkit):
        print(f"skipped: {reason}", file=sys.stderr)
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments)
    quantizers: dict[str, Callable[[Bench, str, Path], None]] = {
        "gptq-gguf-toolkit": with_toolkit,
        "localinfer + imatrix": with_imatrix,
        "localinfer --calibrate": with_covariances,
    }
    print(f"{len(bench.matrices)} matrices, {bench.count} chunks for calibration", file=sys.stderr)
    print_row("model", "type", "quantizer", "MB", *KINDS, "all", "ratio", "s")
    print_row(*["---"] * (7 + len(KINDS)))
    for type_name in arguments.types:
        baseline = None
        for name, make in quantizers.items():
            result = measure(bench, make, type_name)
            baseline = baseline or result.all
            divergences = [f"{value:.4f}" for value in (*result.means.values(), result.all)]
            print_row(bench.name, type_name, name, f"{result.size / 1e6:.1f}", *divergences,
                      f"{result.all / baseline:.2f}", f"{result.seconds:.0f}")  # fmt: skip


def print_row(*cells: str) -> None:
    """Print a row of the table."""
    print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
