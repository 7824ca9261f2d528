"""Checks draft heads: compares llama.cpp's logits with those of torch (heads in separate files) and of the naive
forward pass (MTP heads in the model's file).

    python tests/benchmarks/checks/draft_heads.py                 # all of them
    python tests/benchmarks/checks/draft_heads.py hy_v3 dspark    # the MTP head of a reference model, and another head

Files and the KV cache are in F32. The table has the largest difference between two logits for each head. llama.cpp's C
API does not export the functions for heads yet, so this program loads them by their mangled C++ names. Needs the
dependency groups `test` and `bench`.
"""

import ctypes
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import draft_head_models  # noqa: E402
import llama_cpp as C  # noqa: E402
import llama_cpp_engine  # noqa: E402, F401  (silences llama.cpp's log)
import reference_models  # noqa: E402
import separate_heads  # noqa: E402

from localinfer import naive  # noqa: E402
from localinfer.gguf.reader import open_gguf  # noqa: E402

Floats = NDArray[np.float32]
UNKNOWN = {
    "eagle3-borrowing": "llama.cpp keeps no inputs of smollm3's layers",
    **dict.fromkeys(
        ("dots3note-narrow", "glm-ocr", "glm5-next", "hy_v4"), "llama.cpp does not run its MTP layer"
    ),
    **dict.fromkeys(("deepseek32", "glm-dsa"), "llama.cpp's MTP layer attends to all positions"),
    "deepseek4": "llama.cpp has no names for the weights of its sum of residual streams",
    "mimo2": "llama.cpp requires one matrix for queries, keys and values",
}
ENCODE, DECODE = 0, 1
POINTER, FLOATS = ctypes.c_void_p, ctypes.POINTER(ctypes.c_float)


class Embd(ctypes.Structure):
    _fields_ = (("data", FLOATS), ("n_rows", ctypes.c_size_t), ("n_embd", ctypes.c_size_t))


def mangled_function(name: str, result: Any, *arguments: Any) -> Any:
    actual = getattr(C.llama_cpp._lib, name)
    actual.restype, actual.argtypes = result, arguments
    return actual


INT, BOOL = ctypes.c_int32, ctypes.c_bool
target_layers = mangled_function("_Z28llama_model_target_layer_idsPK11llama_model", ctypes.POINTER(INT), POINTER)
count_target_layers = mangled_function("_Z30llama_model_target_layer_ids_nPK11llama_model", ctypes.c_uint32, POINTER)
keep_inputs = mangled_function(
    "_Z30llama_set_embeddings_layer_inpP13llama_contextjb", None, POINTER, ctypes.c_uint32, BOOL
)
inputs_of = mangled_function("_Z30llama_get_embeddings_layer_inpP13llama_contextj", FLOATS, POINTER, ctypes.c_uint32)
keep_states = mangled_function("_Z26llama_set_embeddings_nextnP13llama_contextbb", None, POINTER, BOOL, BOOL)
states_of = mangled_function("_Z26llama_get_embeddings_nextnP13llama_context", FLOATS, POINTER)
batch_of = mangled_function("llama_batch_ext_init", POINTER, POINTER)
add_token = mangled_function("llama_batch_ext_add_token", INT, POINTER, INT, INT)
add_row = mangled_function("llama_batch_ext_add_embd", INT, POINTER, INT, Embd)
set_row = mangled_function("llama_batch_ext_set_embd_token", BOOL, POINTER, INT, Embd)
set_position = mangled_function("llama_batch_ext_set_pos", BOOL, POINTER, INT, ctypes.POINTER(INT))
set_output = mangled_function("llama_batch_ext_set_output_logits", BOOL, POINTER, INT, BOOL)
process = mangled_function("llama_process", INT, POINTER, ctypes.c_int, POINTER)


def main() -> None:
    print("| head | model | largest difference |")
    print("|---|---|---|")
    names = {*sys.argv[1:]} or {*draft_head_models.NAMES, *separate_heads.NAMES} - {*UNKNOWN}
    for name in sorted(names & {*draft_head_models.NAMES}):
        ids = reference_models.expected(name).ids
        with tempfile.TemporaryDirectory() as folder:
            path = draft_head_models.write_with_mtp_head(name, Path(folder), "F32")
            expected, actual = naive.mtp_logits(naive.Model(open_gguf(path)), ids), mtp_logits_of_llama_cpp(path, ids)
        print(f"| MTP | {name} | {np.abs(actual - expected).max():.1e} |")
    for name in sorted(names & {*separate_heads.NAMES}):
        model = separate_heads.read_description(name)["model"]
        with tempfile.TemporaryDirectory() as folder:
            pair = draft_head_models.write_model_and_head(name, Path(folder))
            actual, expected = logits_of(name, pair, reference_models.expected(model).ids)
        is_candidate = np.isfinite(actual) | np.isfinite(expected)
        print(f"| {name} | {model} | {np.abs(actual[is_candidate] - expected[is_candidate]).max():.1e} |")


def logits_of(name: str, pair: draft_head_models.Pair, ids: list[int]) -> tuple[Floats, Floats]:
    """Return logits of llama.cpp, and those of torch."""
    if name in separate_heads.DFLASH:
        blocks = separate_heads.expected_blocks(name)
        return np.stack([by_block(name, pair, ids[: at + 1]) for at in blocks.positions]), with_confidences(blocks)
    expected = separate_heads.expected(name)
    if name in separate_heads.ASSISTANTS:
        return np.stack([by_assistant(pair, ids[: at + 1]) for at in expected.positions]), expected.logits
    return by_eagle3(pair, ids)[expected.positions - 1][:, expected.tokens], expected.logits


def by_assistant(pair: draft_head_models.Pair, ids: list[int]) -> Floats:
    """Return the logits of an assistant of Gemma 4 for the last token, which the model has not seen."""
    model, head = loaded(pair.model), loaded(pair.head)
    whole = context_of(model)
    head_context = context_of(head, whole)
    keep_states(whole, True, True)
    run(whole, DECODE, ids[:-1], None)
    state = copied(states_of(whole), len(ids) - 1, C.llama_model_n_embd(model))[-1:]
    run(head_context, DECODE, ids[-1:], state, len(ids) - 1)
    return copied(C.llama_get_logits(head_context), 1, reference_models.N_VOCAB)[0]


def by_eagle3(pair: draft_head_models.Pair, ids: list[int]) -> Floats:
    """Return the head's logits for each token but the first, given the tokens before it."""
    head, context, features = read_features(pair, ids)
    run(context, ENCODE, None, features)
    run(context, DECODE, ids[1:], copied(states_of(context), len(ids), C.llama_model_n_embd(head))[:-1])
    return copied(C.llama_get_logits(context), len(ids) - 1, reference_models.N_VOCAB)


def by_block(name: str, pair: draft_head_models.Pair, ids: list[int]) -> Floats:
    """Return the logits of the tokens that a block drafts after the last token, which the model has not seen, and if
    there is a confidence head the probability that each is accepted, after its logits."""
    head, context, features = read_features(pair, ids[:-1])
    run(context, DECODE, None, features, has_outputs=False)
    C.llama_set_causal_attn(context, separate_heads.read_description(name)["config"].get("is_causal", False))
    block = separate_heads.block_input(name, ids[-1])
    run(context, DECODE, block, None, len(ids) - 1)
    expected = separate_heads.expected_blocks(name)
    if count := separate_heads.read_description(name)["config"].get("dflash_config", {}).get("selector_top_k"):
        return selected(copied(states_of(context), len(block), C.llama_model_n_embd(head))[1:], count)
    logits = copied(C.llama_get_logits(context), len(block), reference_models.N_VOCAB)
    columns = [logits[:, separate_heads.draft_tokens(name)]]
    if expected.confidences.size:
        columns.append(copied(states_of(context), len(block), C.llama_model_n_embd(head))[:, :1])
    return np.concatenate(columns, 1)[len(block) - expected.logits.shape[1] :]


def selected(rows: Floats, count: int) -> Floats:
    """Return the logits of draft tokens by the selector of DFlash 2. A row has the `count` candidates of a token, and
    their scores after each candidate of the token before it."""
    logits, before = np.full((len(rows), reference_models.N_VOCAB), -np.inf, np.float32), 0
    for row, found in zip(logits, rows, strict=True):
        scores = found[count:][: count * count].reshape(count, count)[before]
        row[found[:count].astype(int)] = scores
        before = int(scores.argmax())
    return logits


def with_confidences(blocks: separate_heads.ExpectedBlocks) -> Floats:
    """Return the logits of draft tokens, and after them the probability that each is accepted, if it is known."""
    if not blocks.confidences.size:
        return blocks.logits
    return np.concatenate([blocks.logits, blocks.confidences[..., None]], 2)


def read_features(pair: draft_head_models.Pair, ids: list[int]) -> tuple[Any, Any, Floats]:
    """Return the head and its context, and the inputs of the layers that it reads."""
    model, head = loaded(pair.model), loaded(pair.head)
    whole = context_of(model)
    context = context_of(head, whole)
    layers = target_layers(head)[: count_target_layers(head)]
    for layer in layers:
        keep_inputs(whole, layer, True)
    keep_states(context, True, True)
    run(whole, DECODE, ids, None)
    n, n_model = len(ids), C.llama_model_n_embd(model)
    return head, context, np.concatenate([copied(inputs_of(whole, layer), n, n_model) for layer in layers], axis=1)


def mtp_logits_of_llama_cpp(path: Path, ids: list[int]) -> Floats:
    """Return the logits of the MTP head in a model's file for each token, given the state before it: 0 before the first
    one."""
    model = loaded(path)
    whole = context_of(model)
    head = context_of(model, whole, C.LLAMA_CONTEXT_TYPE_MTP)
    keep_states(whole, True, False)
    run(whole, DECODE, ids, None)
    states = copied(states_of(whole), len(ids), C.llama_model_n_embd(model))
    states[1:], states[0] = states[:-1].copy(), 0
    run(head, DECODE, ids, states)
    return copied(C.llama_get_logits(head), len(ids), reference_models.N_VOCAB)


def loaded(path: Path) -> Any:
    params = C.llama_model_default_params()
    params.load_mtp = True
    return C.llama_model_load_from_file(str(path).encode(), params)


def context_of(model: Any, other: Any = None, kind: int = C.LLAMA_CONTEXT_TYPE_DEFAULT) -> Any:
    params = C.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 128
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = params.flash_attn_type = 0
    params.ctx_other, params.ctx_type = other, kind
    return C.llama_init_from_model(model, params)


def run(context: Any, kind: int, ids: list[int] | None, rows: Floats | None, first: int = 0, *,
        has_outputs: bool = True) -> None:
    """Evaluate a batch of tokens, of embedding rows, or of both, whose positions begin with `first`."""
    batch = batch_of(context)
    inputs = rows if ids is None else ids
    assert inputs is not None
    for position in range(len(inputs)):
        row = None if rows is None else row_of(rows, position)
        at = add_row(batch, 0, row) if ids is None else add_token(batch, 0, ids[position])
        if ids is not None and row is not None:
            set_row(batch, at, row)
        set_position(batch, at, ctypes.byref(INT(first + position)))
        set_output(batch, at, has_outputs)
    assert process(context, kind, batch) == 0


def row_of(rows: Floats, number: int) -> Embd:
    return Embd(rows[number:].ctypes.data_as(FLOATS), 1, rows.shape[1])


def copied(actual: Any, rows: int, n: int) -> Floats:
    return np.ctypeslib.as_array(actual, (rows, n)).copy()


if __name__ == "__main__":
    main()
