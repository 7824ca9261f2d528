"""The endpoints of llama.cpp's server."""

import threading
from pathlib import Path

from server_process import ServerProcess
from tiny import Field, tiny_llama

from localinfer import LocalInferError, Stats, UsageError, load
from localinfer.server.http.api_errors import to_api_error
from localinfer.server.openai.usage import timings


def test_health_props_and_slots(server: ServerProcess, tiny: Path) -> None:
    assert server.get("/health").body == {"status": "ok"}
    props = server.get("/props").body
    assert props["total_slots"] == 1
    assert props["default_generation_settings"]["n_ctx"] == 16384
    assert props["model_path"] == str(tiny)
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8
    assert props["bos_token"] == "<|im_start|>"
    assert props["modalities"] == {"vision": False, "audio": False, "video": False}
    assert not props["chat_template_caps"]["supports_tools"]
    assert "im_start" in props["chat_template"]
    slot = {"id": 0, "is_processing": False, "waiting": 0, "prompt_divergence": None, "n_ctx": 16384}
    assert server.get("/slots").body == [slot]


def test_tokenize_and_detokenize(server: ServerProcess, tiny: Path) -> None:
    text = "Hello the <|im_end|> 日"
    with load(tiny) as model:
        assert server.post("/tokenize", {"content": text}).body["tokens"] == model.tokenize(text, parse_special=True)
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True}).body["tokens"]
    assert bytes(byte for piece in pieces for byte in raw(piece["piece"])).decode() == text
    ids = [piece["id"] for piece in pieces]
    assert server.post("/detokenize", {"tokens": ids}).body == {"content": text}
    assert server.post("/detokenize", {"tokens": [10**6]}).status == 400


def test_large_texts(server: ServerProcess, tiny: Path) -> None:
    """Other requests go on while a text is tokenized, and what would take many seconds is refused."""
    text = "Hello the " * 100_000
    ids = server.post("/tokenize", {"content": text}).body["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).body["content"] == text
    assert server.post("/tokenize", {"content": text * 6}).status == 413
    assert server.post("/detokenize", {"tokens": [1] * (1 << 20) + [1]}).status == 413
    for path, body in (("/completion", {"prompt": text * 12}), (
        "/v1/chat/completions", {"messages": [{"role": "user", "content": text * 12}]}
    )):  # fmt: skip
        response = server.post(path, body)
        assert response.status == 400
        assert str(tiny.parent) not in response.body["error"]["message"]


def test_error_messages_have_no_directories() -> None:
    error = to_api_error(LocalInferError("/home/user/models/a.gguf: tokenizer.chat_template: line 3: boom"))
    assert error.message == "a.gguf: tokenizer.chat_template: line 3: boom"
    assert to_api_error(UsageError("temp: must not be negative")).message == "temp: must not be negative"


def test_tokenizing_does_not_block_other_requests(server: ServerProcess) -> None:
    done = threading.Event()

    def tokenize() -> None:
        server.post("/tokenize", {"content": "Hello the " * 100_000, "with_pieces": True})
        done.set()

    thread = threading.Thread(target=tokenize)
    thread.start()
    n_answers = 0
    while not done.is_set():
        assert server.get("/health").status == 200
        n_answers += 1
    thread.join()
    assert n_answers > 10  # one or two if the event loop tokenizes


def raw(piece: str | list[int]) -> bytes:
    return piece.encode() if isinstance(piece, str) else bytes(piece)


def test_apply_template(server: ServerProcess) -> None:
    prompt = server.post("/apply-template", {"messages": [{"role": "user", "content": "Hi"}]}).body["prompt"]
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_template_without_the_generation_prompt(server: ServerProcess) -> None:
    request = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False}
    assert server.post("/apply-template", request).body["prompt"] == "<|im_start|>user\nHi<|im_end|>\n"


def test_prompts_have_one_bos(tmp_path: Path) -> None:
    """A rendered prompt lacks the BOS that the tokenizer adds to it in a completion."""
    keys = {
        "tokenizer.ggml.add_bos_token": Field("BOOL", True), "tokenizer.ggml.bos_token_id": Field("UINT32", 0),
        "tokenizer.chat_template": Field("STRING", "{{ bos_token }}{{ messages[0].content }}"),
    }  # fmt: skip
    with ServerProcess(tiny_llama(tmp_path / "bos.gguf", **keys)) as served:
        messages = {"messages": [{"role": "user", "content": "Hi"}]}
        prompt = served.post("/apply-template", messages).body["prompt"]
        assert prompt == "Hi"
        completed = served.post("/completion", {"prompt": prompt, "n_predict": 1}).body
        assert completed["prompt"] == "<|endoftext|>Hi"
        verbose = served.post("/v1/chat/completions", messages | {"max_tokens": 1, "verbose": True}).body["__verbose"]
        assert verbose["prompt"] == "<|endoftext|>Hi"


def test_continued_messages(server: ServerProcess) -> None:
    question, answer = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
    request = {"messages": [question, answer], "max_tokens": 1, "verbose": True}

    def prompt(**fields: object) -> str:
        body = server.post("/v1/chat/completions", request | fields).body
        return str(body["__verbose"]["prompt"])

    assert prompt().endswith("assistant\nHello")
    assert prompt(continue_final_message=True, add_generation_prompt=False) == prompt()
    assert prompt(continue_final_message=False).endswith("Hello<|im_end|>\n<|im_start|>assistant\n")
    for wrong in (
        {"continue_final_message": True, "add_generation_prompt": True},
        {"continue_final_message": True, "messages": [question]},
        {"messages": [question, answer, answer]},
    ):
        assert server.post("/v1/chat/completions", request | wrong).status == 400, wrong


def test_completion(server: ServerProcess) -> None:
    request = {"prompt": "Hello", "n_predict": 10, "seed": 1, "ignore_eos": True, "return_tokens": True}
    whole = server.post("/completion", request).body
    *chunks, last = server.events("/completion", request | {"stream": True})
    assert "".join(chunk["content"] for chunk in chunks) == whole["content"]
    assert len(whole["tokens"]) == whole["tokens_predicted"] == last["tokens_predicted"] == 10
    assert (whole["stop"], whole["stop_type"]) == (True, "limit")


def test_timings_count_draft_tokens() -> None:
    stats = Stats(generated_tokens=9, generate_seconds=1.0, drafted_tokens=8, accepted_tokens=5)
    assert [timings(stats)[name] for name in ("draft_n", "draft_n_accepted")] == [8, 5]
    assert "draft_n" not in timings(Stats())


def test_speculative_decoding_can_be_disabled(server: ServerProcess) -> None:
    request = {"prompt": "Hello", "n_predict": 10, "seed": 1, "ignore_eos": True, "return_tokens": True}
    text = server.post("/completion", request).body["content"]
    assert server.post("/completion", request | {"speculative.type": "none"}).body["content"] == text
    assert server.post("/completion", request | {"speculative.n_max": 3}).body["content"] == text
    assert server.post("/completion", request | {"speculative.type": "oracle"}).status == 400
