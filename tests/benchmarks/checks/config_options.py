"""Compares converted checkpoints that have unusual options in config.json with transformers.

    python tests/benchmarks/checks/config_options.py
    python tests/benchmarks/checks/config_options.py mamba2 falcon

The options are those of `option_cases.py`, on tiny models with random weights. The naive implementation computes the
converted file in float64. Each option is right (a relative difference below 1e-4), refused with a message that names a
field, or wrong. Options that transformers itself cannot make do not count. Exits with 1 if one is wrong. Needs torch
and transformers.
"""

import json
import sys
import tempfile
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import make_converted  # noqa: E402
import reference_models  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from converted_cases import CASES, Case  # noqa: E402
from option_cases import OPTIONS  # noqa: E402

LIMIT = 1e-4


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    print("| model | option | | |\n|---|---|---|---|")
    outcomes: list[str] = []
    for name in sys.argv[1:] or OPTIONS:
        for option in OPTIONS[name]:
            outcome, note = compare(CASES[name], option)
            outcomes.append(outcome)
            print(f"| {name} | {json.dumps(option)[:80]} | {outcome} | {note[:200]} |", flush=True)
    counts = {outcome: outcomes.count(outcome) for outcome in ("right", "refused", "wrong", "not made")}
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    sys.exit(bool(counts["wrong"]))


def compare(case: Case, option: dict[str, Any]) -> tuple[str, str]:
    """Return the outcome for an option, and a note."""
    from localinfer.errors import LocalInferError, UnsupportedError

    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folder = Path(temporary)
        try:
            expected, ids = make(replace(case, values=case.values | option), option, folder / "tiny")
        except Exception as error:  # transformers raises anything
            return "not made", f"{type(error).__name__}: {error}".splitlines()[0]
        try:
            actual = computed(case, folder, ids)
        except UnsupportedError as error:
            return "refused", str(error).replace(temporary, "")
        except LocalInferError as error:
            return "wrong", str(error).replace(temporary, "")
        except Exception:
            return "wrong", traceback.format_exc().splitlines()[-1]
        notes = [str(each.message) for each in caught if each.category is UserWarning and "localinfer" in each.filename]
    difference = float(np.abs(actual - expected).max() / max(1, np.abs(expected).max()))
    return "right" if difference < LIMIT else "wrong", "; ".join([f"{difference:.1e}", *notes])


def make(case: Case, option: dict[str, Any], folder: Path) -> tuple[Any, list[int]]:
    """Save a checkpoint, and return what transformers computes for the ids that are also returned."""
    torch.manual_seed(0)
    model = make_converted.make_model(case)
    make_converted.randomize(model, case.norm)
    model.save_pretrained(folder)
    written = {key: value for key, value in case.written.items() if key not in option}
    make_converted.edit_config(folder / "config.json", written)
    (folder / "tokenizer.json").write_text(json.dumps(reference_models.byte_tokenizer()), encoding="utf-8")
    expected = make_converted.expected_output(case, model, None, folder)
    return expected, np.load(folder / "ids.npy").tolist()


def computed(case: Case, folder: Path, ids: list[int]) -> Any:
    """Return what the naive implementation computes with the converted file."""
    import checkpoints

    from localinfer import naive
    from localinfer.gguf.reader import open_gguf
    from localinfer.quantization.conversion_check import require_runnable

    file = checkpoints.as_f32(folder / "tiny", folder / "model.gguf")
    require_runnable(file, folder / "tiny")
    model = naive.Model(open_gguf(file))
    return naive.forward(model, ids) if case.kind == "logits" else naive.final_hidden_states(model, ids)


if __name__ == "__main__":
    main()
