"""Write tests/data/rope_settings.npz: llama.cpp's logits with options of RoPE and YaRN, and with other metadata.

    python tests/making/make_rope_fixtures.py

Needs the dependency groups `test` and `bench`. The models are reference models in F32, with a KV cache in F32.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import checkpoints  # noqa: E402
import reference_models  # noqa: E402
from rope_settings import CASES, FILE, POSITIONS  # noqa: E402

from localinfer.options.metadata_values import parse_override  # noqa: E402

SCALING = {
    "none": llama_cpp.LLAMA_ROPE_SCALING_TYPE_NONE, "linear": llama_cpp.LLAMA_ROPE_SCALING_TYPE_LINEAR,
    "yarn": llama_cpp.LLAMA_ROPE_SCALING_TYPE_YARN,
}  # fmt: skip


def main() -> None:
    """Write the logits of all cases."""
    logits = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (model, options) in CASES.items():
            path = Path(folder) / f"{model}.gguf"
            if not path.exists():
                checkpoints.as_f32(reference_models.checkpoint(model, Path(folder)), path)
            logits[name] = computed(path, reference_models.expected(model).ids, settings(dict(options)))
    np.savez_compressed(FILE, **logits)


def settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of llama-cpp-python for options of localinfer."""
    given: dict[str, Any] = {}
    if scaling := options.pop("rope_scaling", None):
        given["rope_scaling_type"] = SCALING[scaling]
    if factor := options.pop("rope_scale", None):
        given["rope_freq_scale"] = 1 / factor
    if overrides := options.pop("override_kv", ()):
        given["kv_overrides"] = {key: typed.value for key, typed in map(parse_override, overrides)}
    return given | options


def computed(path: Path, ids: list[int], arguments: dict[str, Any]) -> Any:
    """Return the logits at POSITIONS, float32."""
    f32 = llama_cpp.GGML_TYPE_F32
    model = llama_cpp.Llama(
        str(path), n_ctx=128, n_threads=2, logits_all=True, type_k=f32, type_v=f32, verbose=False, **arguments
    )
    model.eval(ids)
    return np.array(model.scores[POSITIONS], np.float32)


if __name__ == "__main__":
    main()
