"""`/completion` of llama.cpp's server: its fields, and the fields of its responses."""

import time
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess

from localinfer.generation.pieces import Stats
from localinfer.server.llama_cpp.completion_request import LineRules
from localinfer.server.requests.prefill_reports import PrefillReports

REQUEST = {"prompt": "Hello the", "n_predict": 6, "seed": 1, "ignore_eos": True}


def complete(server: ServerProcess, **fields: Any) -> Any:
    answer = server.post("/completion", REQUEST | fields)
    assert answer.status == 200, answer.body
    return answer.body


def test_fields_of_the_response(server: ServerProcess) -> None:
    body = complete(server, temperature=0.5, return_tokens=True)
    assert body["generation_settings"]["n_predict"] == 6
    assert body["generation_settings"]["temperature"] == 0.5
    assert body["prompt"] == "Hello the"
    assert len(body["tokens"]) == 6
    assert (body["truncated"], body["stop_type"], body["stopping_word"]) == (False, "limit", "")
    assert body["has_new_line"] == ("\n" in body["content"])
    assert complete(server)["tokens"] == []


def test_response_fields(server: ServerProcess) -> None:
    names = ["content", "generation_settings/n_predict", "timings/predicted_n", "missing"]
    chosen = complete(server, response_fields=names)
    assert chosen == {
        "content": complete(server)["content"], "generation_settings/n_predict": 6, "timings/predicted_n": 6
    }  # fmt: skip


def test_stop_word_is_named(server: ServerProcess) -> None:
    content = complete(server)["content"]
    body = complete(server, stop=["never", content[2]])
    assert (body["content"], body["stop_type"]) == (content[: content.index(content[2])], "word")
    assert body["stopping_word"] == content[2]


def test_prompts_in_every_form(server: ServerProcess) -> None:
    ids = server.post("/tokenize", {"content": "Hello the"}).body["tokens"]
    expected = complete(server)["content"]
    for prompt in (ids, [ids[0], server.post("/detokenize", {"tokens": ids[1:]}).body["content"]],
                   {"prompt_string": "Hello the"}):  # fmt: skip
        assert complete(server, prompt=prompt)["content"] == expected
    several = complete(server, prompt=["Hello the", ids, [*ids, " and"]])
    assert [each["content"] for each in several[:2]] == [expected] * 2
    assert several[2]["prompt"] == "Hello the and"
    assert [each["index"] for each in complete(server, n_cmpl=2)] == [0, 1]
    for wrong in ([], [[]], 5, [1.5], [True], {"content": "x"}, [10**6]):
        assert server.post("/completion", REQUEST | {"prompt": wrong}).status == 400, wrong
    assert server.post("/completion", {"prompt": {"prompt_string": "x", "multimodal_data": ["AA=="]}}).status == 400


def test_texts_of_control_tokens_become_tokens(server: ServerProcess) -> None:
    [id] = server.post("/tokenize", {"content": "<|im_end|>"}).body["tokens"]
    by_text, by_id = complete(server, prompt="<|im_end|>Hello"), complete(server, prompt=[id, "Hello"])
    assert by_text["content"] == by_id["content"]
    assert by_text["tokens_evaluated"] == by_id["tokens_evaluated"]


def test_probabilities_of_the_model(server: ServerProcess) -> None:
    entries = complete(server, n_probs=4, temperature=0)["completion_probabilities"]
    assert len(entries) == 6
    for entry in entries:
        assert entry["logprob"] == pytest.approx(max(each["logprob"] for each in entry["top_logprobs"]))
        assert len(entry["top_logprobs"]) == 4
    *events, _ = server.events("/completion", REQUEST | {"n_probs": 4, "temperature": 0, "stream": True})
    assert [event["completion_probabilities"][0]["id"] for event in events] == [entry["id"] for entry in entries]


def test_probabilities_after_the_samplers(server: ServerProcess) -> None:
    fields = {"n_probs": 5, "post_sampling_probs": True, "top_k": 3, "top_p": 1.0, "min_p": 0.0}
    body = complete(server, **fields, return_tokens=True)
    assert body["content"] == complete(server, top_k=3, top_p=1.0, min_p=0.0)["content"]
    assert [entry["id"] for entry in body["completion_probabilities"]] == body["tokens"]
    for entry in body["completion_probabilities"]:
        probabilities = {each["id"]: each["prob"] for each in entry["top_probs"]}
        assert len(probabilities) == 3
        assert sum(probabilities.values()) == pytest.approx(1)
        assert entry["prob"] == probabilities[entry["id"]]


def test_prompt_without_the_cache(server: ServerProcess) -> None:
    prompt = "the and " * 40
    first = complete(server, prompt=prompt)["timings"]
    second = complete(server, prompt=prompt)["timings"]
    assert second["cache_n"] == first["cache_n"] + first["prompt_n"] - 1
    third = complete(server, prompt=prompt, cache_prompt=False)["timings"]
    assert (third["cache_n"], third["prompt_n"]) == (0, first["cache_n"] + first["prompt_n"])


def test_prompt_is_only_evaluated(server: ServerProcess) -> None:
    prompt = "evaluate only this " * 20
    body = complete(server, prompt=prompt, n_predict=0)
    assert (body["content"], body["tokens_predicted"], body["generation_settings"]["n_predict"]) == ("", 0, 0)
    assert complete(server, prompt=prompt)["timings"]["prompt_n"] == 1


def test_bias_of_texts(server: ServerProcess) -> None:
    ids = server.post("/tokenize", {"content": "Hello"}).body["tokens"]
    for bias in ([["Hello", 1000]], {"Hello": 1000}, [[id, 1000] for id in ids], {str(id): 1000 for id in ids}):
        assert complete(server, logit_bias=bias, temperature=0)["content"].startswith("Hello")
    settings = complete(server, logit_bias=[["Hello", False]], ignore_eos=False)["generation_settings"]
    assert settings["logit_bias"] == [{"token": id, "bias": None} for id in ids]
    assert server.post("/completion", REQUEST | {"logit_bias": [["Hello", "much"]]}).status == 400


def test_timings_and_progress_in_a_stream(server: ServerProcess) -> None:
    fields = {"prompt": "progress of a prompt " * 60, "return_progress": True, "timings_per_token": True}
    events = server.events("/completion", REQUEST | fields | {"stream": True})
    reports = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert reports[0]["processed"] == reports[0]["cache"]
    assert reports[-1]["processed"] == reports[-1]["total"] == events[-1]["tokens_evaluated"]
    assert sorted(each["processed"] for each in reports) == [each["processed"] for each in reports]
    assert events[0]["timings"]["prompt_ms"] == 0
    tokens = [event for event in events[:-1] if "prompt_progress" not in event]
    assert len(tokens) == 6
    assert all(event["timings"]["prompt_n"] > 0 for event in tokens)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_timings_and_progress_in_openai_streams(server: ServerProcess, path: str) -> None:
    text = f"progress of {path} " * 60
    prompt = {"prompt": text} if path == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}
    fields = {"max_tokens": 6, "return_progress": True, "timings_per_token": True, "stream": True, "ignore_eos": True}
    fields["grammar"] = "root ::= [a-z ]*"  # a token that ends within a character would not be sent by itself
    events = server.events(path, prompt | fields)
    reports = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert reports[0]["processed"] == reports[0]["cache"]
    assert reports[-1]["processed"] == reports[-1]["total"]
    counts = [event["timings"]["predicted_n"] for event in events if "timings" in event]
    assert counts == sorted(counts)
    assert counts[-1] == 6
    assert sum(count > 0 for count in counts) >= 6


def test_progress_reports_begin_with_the_cached_tokens() -> None:
    reports = PrefillReports(Stats(prompt_tokens=100, reused_tokens=40))
    assert reports(0, 60) == []
    first, *rest = [each for done in (10, 60) for each in reports(done, 60)]
    assert (first.processed, first.cached, first.seconds) == (40, 40, 0.0)
    assert [each.processed for each in rest] == [50, 100]


def test_prompt_and_text_fill_the_context(tiny: Path) -> None:
    """Neither more nor less, as in llama.cpp's server."""
    request = {"prompt": "Hello", "ignore_eos": True}
    with ServerProcess(tiny, "--ctx-size", 64) as server:
        for n_predict, is_truncated in (-1, True), (100, True), (62, False):
            answer = server.post("/completion", request | {"n_predict": n_predict}).body
            assert answer["truncated"] is is_truncated
            n_tokens = answer["tokens_evaluated"] + answer["tokens_predicted"]
            assert n_tokens == (64 if is_truncated else answer["tokens_evaluated"] + 62)


def test_first_token_needs_no_decode_step(server: ServerProcess) -> None:
    assert complete(server, n_predict=1)["timings"]["predicted_per_second"] == 0
    timings = complete(server)["timings"]
    assert timings["predicted_per_second"] == pytest.approx(5000 / timings["predicted_ms"])


@pytest.mark.parametrize(
    ("rules", "text", "seconds", "end"),
    [
        (LineRules(n_indent=4), "    a\n    b\n  c", 0, 14),
        (LineRules(n_indent=4), "    a\n    b", 0, None),
        (LineRules(n_indent=4), "  a", 0, None),
        (LineRules(milliseconds=100), "a\nb", 0.2, 3),
        (LineRules(milliseconds=100), "ab", 0.2, None),
        (LineRules(milliseconds=100), "a\nb", 0.05, None),
        (LineRules(), "a\nb", 9, None),
    ],
)
def test_ends_of_lines(rules: LineRules, text: str, seconds: float, end: int | None) -> None:
    assert rules.end(text, seconds) == end


def test_time_limit(server: ServerProcess) -> None:
    [newline] = server.post("/tokenize", {"content": "\n"}).body["tokens"]
    start = time.monotonic()
    body = complete(server, n_predict=5000, t_max_predict_ms=200, logit_bias=[[newline, 50]])
    assert time.monotonic() - start < 60
    assert body["stop_type"] == "limit"
    assert 0 < body["tokens_predicted"] < 5000


def test_full_context(server: ServerProcess) -> None:
    answer = server.post("/completion", {"prompt": "Hello" * 20000})
    assert answer.status == 400
    error = answer.body["error"]
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > error["n_ctx"] == 16384
    assert "exceeds the available context size" in error["message"]
