"""Filling in the middle: `/infill`, and `suffix` of `/v1/completions`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess
from tiny import Field, tiny_qwen2

from localinfer import Model, load
from localinfer.server.requests.infill_prompt import InfillPrompt
from localinfer.server.requests.mixed_prompts import MixedPrompt

PRE, SUF, MID, REP, SEP = range(10, 15)
TOKENS = {"fim_pre": PRE, "fim_suf": SUF, "fim_mid": MID, "fim_rep": REP, "fim_sep": SEP}
REQUEST = {"input_prefix": "def a():\n", "input_suffix": "\n    return b\n", "n_predict": 4, "seed": 1,
           "ignore_eos": True}  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys = {f"tokenizer.ggml.{name}_token_id": Field("UINT32", id) for name, id in TOKENS.items()}
    return tiny_qwen2(tmp_path_factory.mktemp("infill") / "infill.gguf", n_ctx=2048, **keys)


@pytest.fixture(scope="module")
def infilling(path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(path, "--parallel", "1") as served:
        yield served


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with load(path) as opened:
        yield opened


def ids_of(model: Model, *parts: str | int) -> list[int]:
    return MixedPrompt(parts).ids(model, add_special=False, parse_special=False)


def test_order_of_the_parts(model: Model) -> None:
    prompt = InfillPrompt(MixedPrompt(("before",)), MixedPrompt(("after",)), MixedPrompt(("mid",)))
    file = [PRE, "before", "mid", SUF, "after", MID]
    assert prompt.ids(model) == ids_of(model, REP, "myproject\n", SEP, "filename\n", *file)
    swapped = InfillPrompt(prompt.prefix, prompt.suffix, suffix_first=True)
    assert swapped.ids(model) == ids_of(
        model, REP, "myproject\n", SEP, "filename\n", SUF, "after", PRE, "before", MID)  # fmt: skip


def test_further_files_fill_the_context(model: Model) -> None:
    """Their end is kept, as it is next to the file."""
    extra = [("a.py", "first " * 3000), ("b.py", "second")]
    ids = InfillPrompt(MixedPrompt(("x",)), MixedPrompt(("y",)), extra=extra, n_predict=100).ids(model)
    assert len(ids) == model.n_ctx - 200
    end = ids_of(model, SEP, "b.py\n", "second", SEP, "filename\n", PRE, "x", SUF, "y", MID)
    assert ids[-len(end) :] == end


def test_long_texts_are_cut_around_the_gap(model: Model) -> None:
    ids = InfillPrompt(MixedPrompt(("a" * 3000,)), MixedPrompt(("b" * 3000,))).ids(model)
    prefix, suffix = (ids_of(model, letter * 3000) for letter in "ab")
    at = ids.index(PRE) + 1
    middle = ids.index(SUF)
    assert ids[at:middle] == prefix[-(middle - at) :]
    assert ids[middle + 1 : -1] == suffix[: len(ids) - middle - 2]
    assert 2.5 < (middle - at) / (len(ids) - middle) < 3.5
    assert len(ids) <= model.n_ctx


def test_response_is_that_of_a_completion(infilling: ServerProcess, model: Model) -> None:
    body = infilling.post("/infill", REQUEST | {"prompt": "    b = "}).body
    file = [PRE, "def a():\n", "    b = ", SUF, "\n    return b\n", MID]
    ids = ids_of(model, REP, "myproject\n", SEP, "filename\n", *file)
    by_ids = infilling.post("/completion", {"prompt": ids, "n_predict": 4, "seed": 1, "ignore_eos": True}).body
    assert body["content"] == by_ids["content"]
    assert body["prompt"] == by_ids["prompt"]


def test_request_of_an_editor(infilling: ServerProcess) -> None:
    """The fields that llama.vim sends."""
    request = {
        "id_slot": 0, "input_prefix": "import a\n", "input_suffix": "\n", "prompt": "x = ",
        "input_extra": [{"filename": "a.py", "text": "y = 1\n", "time": 1}], "n_predict": 8, "n_indent": 0, "top_k": 40,
        "top_p": 0.9, "samplers": ["top_k", "top_p", "infill"], "stream": False, "cache_prompt": True,
        "t_max_prompt_ms": 500, "t_max_predict_ms": 500,
        "response_fields": ["content", "timings/prompt_n", "timings/predicted_ms", "truncated", "tokens_cached"],
    }  # fmt: skip
    answer = infilling.post("/infill", request)
    assert answer.status == 200, answer.body
    assert answer.body.keys() == set(request["response_fields"])
    warm_up = infilling.post("/infill", request | {"n_predict": 0, "samplers": [], "response_fields": [""]})
    assert warm_up.status == 200, warm_up.body
    nothing_open = {"input_prefix": "", "input_suffix": "", "prompt": "", "temperature": 0.0, "t_max_prompt_ms": 1}
    warm_up = infilling.post("/infill", request | nothing_open | {"n_predict": 0, "response_fields": [""]})
    assert warm_up.status == 200, warm_up.body


def test_requests_of_llama_vscode(infilling: ServerProcess) -> None:
    """The second one reads the further files before they are needed."""
    files = [{"filename": "a.py", "text": "y = 1\n", "time": 1}]
    request = {
        "input_prefix": "import a\n", "input_suffix": "\n", "input_extra": files, "prompt": "x = ", "n_predict": 8,
        "top_k": 40, "top_p": 0.99, "stream": False, "n_indent": 4, "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 2500,
    }  # fmt: skip
    answer = infilling.post("/infill", request).body
    assert isinstance(answer["content"], str)
    assert {"prompt_n", "prompt_ms", "predicted_n", "predicted_ms"} <= answer["timings"].keys()
    empty = {"input_prefix": "", "input_suffix": "", "prompt": ""}
    warm_up = request | empty | {"n_predict": 1, "samplers": ["temperature"], "t_max_prompt_ms": 1}
    assert infilling.post("/infill", warm_up).status == 200
    again = infilling.post("/infill", request).body
    assert again["timings"]["cache_n"] > 0, "the files are read only once"


def test_request_of_continue(infilling: ServerProcess) -> None:
    """Its provider llama.cpp streams /completion with a key that the server does not need."""
    request = {"prompt": "def a():\n", "stream": True, "n_predict": 4, "stop": ["\n\n"], "top_k": 40, "top_p": 0.9,
               "temperature": 0.01, "mirostat": 0, "min_p": 0.05, "frequency_penalty": 0}  # fmt: skip
    events = infilling.events("/completion", request)
    whole = infilling.post("/completion", request | {"stream": False}, authorization="Bearer undefined").body
    assert "".join(event["content"] for event in events) == whole["content"]


@pytest.mark.parametrize(
    "fields",
    [
        {"input_prefix": None}, {"input_suffix": None}, {"input_prefix": 5}, {"input_extra": [{}]},
        {"input_extra": [{"filename": "a"}]}, {"input_extra": [{"filename": 1, "text": "a"}]}, {"input_extra": "a"},
    ],
)  # fmt: skip
def test_invalid_fields(infilling: ServerProcess, fields: dict[str, object]) -> None:
    assert infilling.post("/infill", REQUEST | fields).status == 400


def test_suffix_of_completions(infilling: ServerProcess) -> None:
    by_infill = infilling.post("/infill", REQUEST).body["content"]
    request = {"prompt": "def a():\n", "suffix": "\n    return b\n", "max_tokens": 4, "seed": 1, "ignore_eos": True}
    choice = infilling.post("/v1/completions", request).body["choices"][0]
    assert choice["text"] == by_infill
    echoed = infilling.post("/v1/completions", request | {"echo": True}).body["choices"][0]["text"]
    assert echoed == "def a():\n" + by_infill
    assert infilling.post("/v1/completions", request | {"prompt": [1, 2]}).status == 400


def test_suffix_of_ollama(infilling: ServerProcess) -> None:
    by_infill = infilling.post("/infill", REQUEST).body["content"]
    options = {"num_predict": 4, "seed": 1, "ignore_eos": True}
    request = {"prompt": "def a():\n", "suffix": "\n    return b\n", "options": options}
    chunks = infilling.lines_of("/api/generate", request)
    assert "".join(each["response"] for each in chunks) == by_infill
    assert infilling.post("/api/generate", request | {"stream": False}).body["response"] == by_infill


def test_model_without_the_tokens(server: ServerProcess) -> None:
    answer = server.post("/api/generate", {"prompt": "a", "suffix": "b"})
    assert (answer.status, "fill in the middle" in answer.body["error"]) == (501, True)
    answer = server.post("/infill", REQUEST)
    assert answer.status == 501
    assert "fill in the middle" in answer.body["error"]["message"]
