"""The Python API with tiny models: runs, stop conditions, prefix caching, interrupts, errors."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_gemma3, tiny_llama

import localinfer
from localinfer import ContextOverflowError, LocalInferError, Model, Options, Piece, UnsupportedError, UsageError
from localinfer.generation.token_selection import SamplerFunction

PROMPT = "Hello and the other one then and there"
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def llama_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "llama.gguf")


@pytest.fixture(scope="module")
def llama(llama_file: Path) -> Iterator[Model]:
    with localinfer.load(llama_file, threads=2, ctx_size=256, ignore_eos=True, n_predict=12, seed=3) as model:
        yield model


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tiny_gemma3(tmp_path_factory.mktemp("model") / "gemma.gguf")
    varied = {"temp": 50.0, "top_k": 0, "min_p": 0.0}  # the distribution of this model is very peaked
    with localinfer.load(path, threads=2, ctx_size=256, ignore_eos=True, n_predict=12, seed=3, **varied) as model:
        yield model


@pytest.fixture(params=["llama", "gemma"])
def model(request: pytest.FixtureRequest) -> Model:
    chosen: Model = request.getfixturevalue(request.param)
    return chosen


def clear_cache(model: Model) -> None:
    """Fill the KV cache with another sequence, so that the next run reuses nothing."""
    model.logits([0, 0, 0])


def ids_of(pieces: Iterator[Piece]) -> list[int]:
    return [piece.id for piece in pieces]


def text_of(pieces: Iterator[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


# --- runs ---


def test_truncate_messages(llama: Model) -> None:
    """The remaining turns take half of the context, begin with a user message, and are not truncated again soon."""
    exchange = [{"role": "user", "content": "Hello " * 4}, {"role": "assistant", "content": "there " * 4}]
    rules = {"role": "system", "content": "then"}
    long = [rules, *exchange * 40, *MESSAGES]
    assert len(llama.render(long).ids) > llama.n_ctx
    remaining = llama.truncate_messages(long)
    assert remaining[0] == rules
    assert remaining[1:] == long[-len(remaining) + 1 :]
    assert remaining[1]["role"] == "user"
    assert (
        len(llama.render(remaining).ids) <= llama.n_ctx // 2 < len(llama.render([rules, *exchange, *remaining[1:]]).ids)
    )
    assert llama.truncate_messages(remaining) == remaining
    assert llama.truncate_messages(MESSAGES) == MESSAGES
    growing = [rules]
    while len(llama.render(growing).ids) <= llama.n_ctx * 3 // 4:  # a quarter is for the answer
        assert llama.truncate_messages(growing) == growing
        growing += exchange
    assert llama.truncate_messages(growing) != growing


def test_save_and_load_cache(llama: Model, tmp_path: Path) -> None:
    expected = ids_of(llama.stream(PROMPT))
    llama.save_cache(tmp_path / "cache")
    clear_cache(llama)
    assert llama.load_cache(tmp_path / "cache") == len(llama.tokenize(PROMPT)) + 11  # the last token was not evaluated
    run = llama.stream(PROMPT)
    assert ids_of(run) == expected
    assert run.stats.reused_tokens == run.stats.prompt_tokens - 1


def test_damaged_cache_file_is_ignored(llama: Model, tmp_path: Path) -> None:
    expected = ids_of(llama.stream(PROMPT))
    llama.save_cache(tmp_path / "cache")
    (tmp_path / "cache").write_bytes((tmp_path / "cache").read_bytes()[:-1])
    with pytest.warns(UserWarning, match="damaged; the file is ignored"):
        assert llama.load_cache(tmp_path / "cache") == 0
    assert ids_of(llama.stream(PROMPT)) == expected
    (tmp_path / "cache").write_text("an essay that is not to be overwritten, of more than fifty letters")
    with pytest.raises(UsageError, match="exists but is not a snapshot"):
        llama.load_cache(tmp_path / "cache")


def test_run_yields_pieces_and_statistics(model: Model) -> None:
    run = model.stream(PROMPT)
    pieces = list(run)
    stats = run.stats
    assert len(pieces) == stats.generated_tokens == 12
    assert "".join(piece.text for piece in pieces) == model.detokenize([piece.id for piece in pieces])
    assert stats.prompt_tokens == len(model.tokenize(PROMPT))
    assert stats.finish_reason == "length"
    assert stats.seed == 3
    assert stats.prompt_seconds > 0
    assert stats.generate_seconds > 0


def test_prompt_of_token_ids(model: Model) -> None:
    assert ids_of(model.stream(model.tokenize(PROMPT))) == ids_of(model.stream(PROMPT))
    assert ids_of(model.stream(np.array(model.tokenize(PROMPT)))) == ids_of(model.stream(PROMPT))  # type: ignore[arg-type]


def test_same_seed_gives_the_same_tokens(model: Model) -> None:
    first = ids_of(model.stream(PROMPT, seed=1))
    assert first == ids_of(model.stream(PROMPT, seed=1))
    assert first != ids_of(model.stream(PROMPT, seed=2))
    random = model.stream(PROMPT, seed=-1)
    assert ids_of(random) == ids_of(model.stream(PROMPT, seed=random.stats.seed))


def test_logits_teacher_forced_match_a_greedy_run(model: Model) -> None:
    prompt = model.tokenize(PROMPT)
    generated = ids_of(model.stream(prompt, temp=0))
    logits = model.logits(prompt + generated)
    assert logits.shape == (len(prompt) + 12, model.n_vocab)
    assert logits.dtype == np.float32
    allowed = np.delete(np.arange(model.n_vocab), sorted(model.tokenizer.eog))
    expected = allowed[logits[len(prompt) - 1 : -1, allowed].argmax(axis=1)]
    assert expected.tolist() == generated


def test_end_of_generation_token_ends_a_run(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ids_of(llama.stream(PROMPT, temp=0))
    monkeypatch.setattr(llama.tokenizer, "eog", frozenset({ids[5]}))
    expected = ids[: ids.index(ids[5])]
    run = llama.stream(PROMPT, temp=0, ignore_eos=False)
    assert ids_of(run) == expected
    assert run.stats.finish_reason == "stop"
    assert ids[5] not in ids_of(llama.stream(PROMPT, temp=0, ignore_eos=True))


def test_stop_string_ends_a_run(llama: Model) -> None:
    pieces = list(llama.stream(PROMPT, seed=5))
    text = "".join(piece.text for piece in pieces)
    seam = len(pieces[0].text + pieces[1].text + pieces[2].text)
    stop = text[seam - 1 : seam + 1]  # spans two tokens
    run = llama.stream(PROMPT, seed=5, stop=["never in there", stop])
    assert text_of(run) == text[: text.index(stop)]
    assert (run.stats.finish_reason, run.stats.stop_string) == ("stop", stop)
    run = llama.stream(PROMPT, seed=5, stop=[text + "!"])
    assert text_of(run) == text
    assert run.stats.finish_reason == "length"


def test_characters_are_never_split(llama: Model) -> None:
    """A random byte-level model generates invalid UTF-8; the pieces contain every byte exactly once."""
    for seed in range(5):
        pieces = list(llama.stream(PROMPT, seed=seed, temp=5, top_k=0, n_predict=40))
        assert "".join(piece.text for piece in pieces) == llama.detokenize([piece.id for piece in pieces])
        assert len(pieces) == 40


def test_run_options_are_validated(llama: Model) -> None:
    with pytest.raises(UsageError, match=r"^temp: must be "):
        llama.stream(PROMPT, temp=-1)
    with pytest.raises(UsageError, match=r"^ctx_size: can only be set when the model is loaded$"):
        llama.stream(PROMPT, ctx_size=5)
    with pytest.raises(UsageError, match=r"^maximum_tokens: no such option"):
        llama.stream(PROMPT, maximum_tokens=5)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match=r"^max_tokens: must be "):
        llama.stream(PROMPT, max_tokens=-5)
    with pytest.raises(UsageError, match=r"^n_predict: means the same as another keyword of this call$"):
        llama.stream(PROMPT, max_tokens=5, n_predict=5)


@pytest.mark.parametrize("prompt", [["a"], [1.5], [[1]], [-1], [10**6], [2**70], [None]])
def test_invalid_token_ids(llama: Model, prompt: Sequence[int]) -> None:
    with pytest.raises(UsageError, match=r"^tokens: "):
        llama.stream(prompt)
    with pytest.raises(UsageError, match=r"^tokens: "):
        llama.logits(prompt)


def test_token_ids_from_an_iterator(llama: Model) -> None:
    expected = llama.logits([5, 6, 7])
    np.testing.assert_array_equal(llama.logits(iter([5, 6, 7])), expected)  # type: ignore[arg-type]
    llama.engine.reset()
    np.testing.assert_array_equal(llama.engine.logits(iter([5, 6, 7])), expected)
    assert ids_of(llama.stream(iter([5, 6, 7]))) == ids_of(llama.stream([5, 6, 7]))  # type: ignore[arg-type]
    clear_cache(llama)


@pytest.mark.parametrize("wrong", [5, None, 1.5, b"m.gguf", ["m.gguf"]])
def test_arguments_of_wrong_type(llama: Model, wrong: object) -> None:
    with pytest.raises(UsageError, match=r"^path_or_name: must be a path or a name, not "):
        localinfer.load(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^text: must be a string, not "):
        llama.tokenize(wrong)  # type: ignore[arg-type]


def test_empty_prompt_needs_bos(llama: Model, gemma: Model) -> None:
    with pytest.raises(UsageError, match=r"^the prompt is empty"):
        llama.stream("")
    with pytest.raises(UsageError, match=r"^the prompt is empty"):
        gemma.stream([])
    run = gemma.stream("")
    assert len(ids_of(run)) == 12
    assert run.stats.prompt_tokens == 1


# --- reuse of prefixes ---


@pytest.mark.parametrize("greedy", [{}, {"temp": 0}])
def test_prefix_reuse_gives_the_same_tokens(model: Model, greedy: dict[str, object]) -> None:
    prompt = model.tokenize(PROMPT)
    first = ids_of(model.stream(prompt, **greedy))
    longer = prompt + first + model.tokenize(" and", add_special=False)
    run = model.stream(longer, **greedy)
    reused = ids_of(run)
    assert run.stats.reused_tokens == len(prompt) + len(first) - 1  # the last one was never evaluated
    clear_cache(model)
    run = model.stream(longer, **greedy)
    assert ids_of(run) == reused
    assert run.stats.reused_tokens == 0


def test_at_least_one_token_is_evaluated(llama: Model) -> None:
    clear_cache(llama)
    first = ids_of(llama.stream(PROMPT))
    run = llama.stream(PROMPT)
    assert ids_of(run) == first
    assert run.stats.reused_tokens == run.stats.prompt_tokens - 1


def test_lost_sliding_window_is_evaluated_again(gemma: Model) -> None:
    """The sliding window keeps 16 tokens; earlier ones are lost, so the prompt is evaluated again."""
    prompt = gemma.tokenize(PROMPT)
    first = ids_of(gemma.stream(prompt, n_predict=60))
    assert ids_of(gemma.stream(prompt, n_predict=60)) == first


def test_conversation_reuses_the_cache(llama: Model) -> None:
    clear_cache(llama)
    run = llama.stream_chat(MESSAGES, top_k=1, stop=["\ufffd"])
    answer = text_of(run)
    continued = [*MESSAGES, {"role": "assistant", "content": answer}, {"role": "user", "content": "Hello again"}]
    before = run.stats.prompt_tokens
    run = llama.stream_chat(continued)
    reused = ids_of(run)
    assert before <= run.stats.reused_tokens < run.stats.prompt_tokens
    clear_cache(llama)
    assert ids_of(llama.stream_chat(continued)) == reused


TOOLS = [{"name": "now", "parameters": {}}]
SHOWS_TOOLS = """{% if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


def forced_sampler(model: Model, text: str) -> SamplerFunction:
    """Return a sampler that selects the tokens of a given text, regardless of the logits."""
    ids = iter(model.tokenize(text, add_special=False, parse_special=True))
    return lambda *_: next(ids)


def test_tool_calls_are_parsed(llama: Model) -> None:
    scripted = 'I look.\n<tool_call>{"name": "now", "arguments": {"zone": "</tool_call>"}}</tool_call>'
    n = len(llama.tokenize(scripted, add_special=False))
    how = {"chat_template": SHOWS_TOOLS, "n_predict": n}
    pieces = list(llama.stream_chat(MESSAGES, tools=TOOLS, sampler=forced_sampler(llama, scripted), **how))
    assert llama.detokenize(ids_of(iter(pieces))) == scripted
    assert text_of(iter(pieces)) == "I look."
    [call] = [call for piece in pieces for call in piece.calls]
    assert (call.name, call.arguments, call.id) == ("now", {"zone": "</tool_call>"}, "call00000")
    assert text_of(llama.stream_chat(MESSAGES, sampler=forced_sampler(llama, scripted), **how)) == scripted

    assistant_message = {"role": "assistant", "content": "I look.", "tool_calls": [call.as_entry()]}
    messages = [
        *MESSAGES,
        assistant_message,
        {"role": "tool", "content": "noon", "tool_call_id": call.id, "name": "now"},
    ]
    [*_, last] = llama.stream_chat(messages, tools=TOOLS, sampler=forced_sampler(llama, scripted), **how)
    assert [call.id for call in last.calls] == ["call00001"]
    assert "tool: noon" in llama.render(messages, tools=TOOLS, chat_template=SHOWS_TOOLS).text


def test_truncated_tool_call_is_text(llama: Model) -> None:
    scripted = 'Yes <tool_call>{"name": "now", "arguments": {'
    n = len(llama.tokenize(scripted, add_special=False))
    run = llama.stream_chat(
        MESSAGES, tools=TOOLS, sampler=forced_sampler(llama, scripted), chat_template=SHOWS_TOOLS, n_predict=n
    )
    with pytest.warns(UserWarning, match="cannot be parsed"):
        assert text_of(run) == scripted
    assert run.stats.finish_reason == "length"


def test_template_without_tool_support(llama: Model) -> None:
    with pytest.warns(UserWarning, match="does not support tools"):
        llama.render(MESSAGES, tools=TOOLS, chat_template="chatml")


def test_same_seed_same_tokens_for_any_threads_with_and_without_reuse(smollm2: Path) -> None:
    """Two turns with a real model: the second one reuses the KV cache, or is evaluated from scratch."""
    observed = set()
    for threads in (1, 2, 3):
        with localinfer.load(smollm2, threads=threads, ctx_size=512, seed=11, n_predict=24, temp=1.0) as model:
            answer = text_of(model.stream_chat(MESSAGES))
            continued = [*MESSAGES, {"role": "assistant", "content": answer}, {"role": "user", "content": "Why?"}]
            run = model.stream_chat(continued)
            reused = tuple(ids_of(run))
            assert run.stats.reused_tokens > 30
            clear_cache(model)
            assert tuple(ids_of(model.stream_chat(continued))) == reused
            observed.add((answer, reused))
    assert len(observed) == 1


# --- the context ---


def test_prompt_that_fills_the_context(llama: Model) -> None:
    pieces = llama.stream([5] * 256)
    assert isinstance(next(pieces), Piece)
    error = r"256 tokens of prompt and 1 of text, it holds 256; ctx_size .*ring"
    with pytest.raises(ContextOverflowError, match=error):
        next(pieces)
    assert pieces.stats.finish_reason == "context"


@pytest.mark.parametrize(("length", "generated"), [(254, 3), (255, 2), (256, 1)])
def test_full_context_ends_a_run_after_its_last_piece(llama: Model, length: int, generated: int) -> None:
    expected = ids_of(llama.stream([5] * length, n_predict=generated))
    pieces = llama.stream([5] * length)
    assert [next(pieces).id for _ in range(generated)] == expected
    with pytest.raises(ContextOverflowError) as error:
        next(pieces)
    assert error.value.exit_code == 5


def test_too_long_prompt_is_rejected_immediately(llama: Model) -> None:
    llama.logits([1, 2, 3])
    error = r"^the prompt of 257 tokens exceeds the available context size of 256; ctx_size .*ring"
    with pytest.raises(ContextOverflowError, match=error):
        llama.stream([5] * 257)
    assert llama.engine.n_past == 3


def test_ring_buffer_generates_without_limit(llama_file: Path) -> None:
    with localinfer.load(llama_file, ctx_size=32, ctx_policy="ring", ignore_eos=True, seed=1) as model:
        run = model.stream(PROMPT, n_predict=100)
        assert len(ids_of(run)) == 100
        assert run.stats.finish_reason == "length"
        assert len(ids_of(model.stream([5] * 80, n_predict=3, repeat_penalty=1.1, repeat_last_n=-1))) == 3


# --- interrupts ---


def test_model_is_usable_after_interrupted_prefill(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ids_of(llama.stream(PROMPT))
    clear_cache(llama)
    evaluate = llama.engine.evaluate

    def interrupted(tokens: Sequence[int], progress: object = None, rewindable_suffix: int = 0) -> None:
        evaluate(tokens[: len(tokens) // 2])  # one batch was complete before Ctrl-C
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llama.engine, "evaluate", interrupted)
        run = llama.stream(PROMPT)
        with pytest.raises(KeyboardInterrupt):
            list(run)
    assert run.stats.finish_reason == "interrupted"
    half = llama.engine.n_past
    run = llama.stream(PROMPT)
    assert ids_of(run) == expected
    assert run.stats.reused_tokens == half > 0


def test_run_can_be_abandoned(llama: Model) -> None:
    expected = ids_of(llama.stream(PROMPT))
    run = llama.stream(PROMPT)
    for piece in run:
        if piece.id == expected[3]:
            break
    assert run.stats.finish_reason == "interrupted"
    assert ids_of(llama.stream(PROMPT)) == expected


def test_new_run_ends_the_previous_one(llama: Model) -> None:
    first, second = llama.stream(PROMPT), llama.stream("Hello")
    with pytest.raises(LocalInferError, match="another one was started"):
        next(first)
    next(second)
    llama.logits([1, 2])
    with pytest.raises(LocalInferError, match="another one was started"):
        next(second)


# --- the end of a model, and several threads ---


def test_closed_model_raises_immediately(llama_file: Path) -> None:
    model = localinfer.load(llama_file, ctx_size=64, ignore_eos=True, seed=1)
    partial = model.stream(PROMPT)
    next(partial)
    model.close()
    model.close()
    runs = (
        lambda: next(partial),
        lambda: model.stream(PROMPT),
        lambda: model.stream_chat(MESSAGES),
        lambda: model.logits([1]),
        lambda: model.engine.evaluate([1]),
    )
    for run in runs:
        with pytest.raises(LocalInferError, match=r"^the model is closed$"):
            run()


def test_close_ends_the_prefill_of_another_thread(llama_file: Path) -> None:
    reading = threading.Event()
    model = localinfer.load(llama_file, ctx_size=256, batch_size=1, progress=lambda *_: reading.set())
    with ThreadPoolExecutor(1) as pool:
        reading.clear()
        logits = pool.submit(lambda: next(model.stream([5] * 256)))
        assert reading.wait(30)
        model.close()
        with pytest.raises(LocalInferError, match=r"^the model is closed$"):
            logits.result(30)


def test_threads_take_turns(llama: Model) -> None:
    prompts = [[number + 3] * 20 for number in range(4)]
    expected = [llama.logits(prompt) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for ours, reference in zip(expected, pool.map(llama.logits, prompts), strict=True):
                np.testing.assert_array_equal(ours, reference)


def test_latest_run_of_several_threads_wins(llama: Model) -> None:
    expected = [ids_of(llama.stream([number + 3] * 20)) for number in range(4)]

    def run(number: int) -> list[int]:
        ids = []
        with contextlib.suppress(LocalInferError):  # another one was started
            ids.extend(piece.id for piece in llama.stream([number + 3] * 20))
        return ids

    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            answers = list(pool.map(run, range(4)))
            assert any(len(ids) == 12 for ids in answers)
            for ids, whole in zip(answers, expected, strict=True):
                assert ids == whole[: len(ids)]


# --- chat ---


def test_system_prompt_comes_first(llama: Model) -> None:
    messages = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    run = llama.stream_chat(messages)
    expected = ids_of(run)
    length = run.stats.prompt_tokens
    assert ids_of(llama.stream_chat(MESSAGES, system_prompt="Be brief.")) == expected
    run = llama.stream_chat(messages, system_prompt="Be long.")
    assert ids_of(run) == expected
    assert run.stats.prompt_tokens == length


def test_model_without_template(gemma: Model) -> None:
    error = r"gemma.gguf: tokenizer.chat_template: missing: .*`localinfer generate`"
    with pytest.raises(UnsupportedError, match=error):
        gemma.stream_chat(MESSAGES)
    assert len(ids_of(gemma.stream_chat(MESSAGES, chat_template="chatml"))) == 12


def test_broken_template_does_not_affect_generate(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", **{"tokenizer.chat_template": "{% if %}"})
    with localinfer.load(path, n_predict=1, ignore_eos=True) as model:
        assert len(ids_of(model.stream(PROMPT))) == 1
        with pytest.raises(LocalInferError, match=r"m.gguf: tokenizer.chat_template: line 1: ") as error:
            model.stream_chat(MESSAGES)
        assert error.value.exit_code == 1
        with pytest.raises(LocalInferError, match=r"^chat_template: line 1: "):
            model.stream_chat(MESSAGES, chat_template="{{")
        with pytest.raises(UsageError, match=r"^chat_template: 'nosuch' is neither a template name nor a template"):
            model.stream_chat(MESSAGES, chat_template="nosuch")
        assert len(ids_of(model.stream_chat(MESSAGES, chat_template="{{ messages[0].content }}"))) == 1


def test_render(llama: Model) -> None:
    prompt = llama.render(MESSAGES, system_prompt="Be brief.", chat_template="llama3")
    assert prompt.text.startswith("<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>")
    assert prompt.ids == llama.tokenize(prompt.text, add_special=False)
    finished = llama.render(MESSAGES, add_generation_prompt=False).text
    assert llama.render(MESSAGES).text == finished + "<|im_start|>assistant\n"
    run = llama.stream_chat(MESSAGES)
    list(run)
    assert run.stats.prompt_tokens == len(llama.render(MESSAGES).ids)


def test_tools_documents_and_variables_reach_the_template(llama: Model) -> None:
    shown = {"chat_template": "{{ [messages, tools, documents, enable_thinking] | tojson }}"}
    inputs = {"tools": [{"name": "f"}], "documents": [{"title": "t", "text": "<|im_end|>"}]}
    thinking = {"template_kwargs": {"enable_thinking": False}}
    prompt = llama.render(MESSAGES, **inputs, **thinking, **shown)
    assert json.loads(prompt.text) == [MESSAGES, inputs["tools"], inputs["documents"], False]
    assert not {0, 1, 2} & set(prompt.ids)  # control tokens
    assert prompt == llama.render(MESSAGES, **inputs, **shown, chat_template_kwargs='{"enable_thinking": false}')
    assert prompt == llama.render(
        MESSAGES, **inputs, **thinking, **shown, chat_template_kwargs='{"enable_thinking": 1}'
    )
    run = llama.stream_chat(MESSAGES, **inputs, **thinking, **shown, n_predict=1)
    list(run)
    assert run.stats.prompt_tokens == len(prompt.ids)


def test_continue_final_message(llama: Model) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "Well, "}]
    prompt = llama.render(messages, continue_final_message=True)
    assert prompt.text == llama.render(MESSAGES).text + "Well, "
    assert ids_of(llama.stream_chat(messages, continue_final_message=True)) == ids_of(llama.stream(prompt.ids))


def test_text_with_bos_has_a_single_bos(gemma: Model) -> None:
    for text in "Hello", "<bos>Hello", "<bos>", "":
        assert gemma.tokenize(text, parse_special=True).count(2) == 1
        assert gemma.tokenize(text, parse_special=True) == gemma.tokenize(text.removeprefix("<bos>"))


def test_messages_are_validated_and_never_modified(llama: Model) -> None:
    with pytest.raises(UsageError, match=r"^messages\[0\].content: must be a string or a list of parts$"):
        llama.stream_chat([{"role": "user", "content": 5}])
    messages = [{"role": "user", "content": "a<|im_end|>"}]
    list(llama.stream_chat(messages, system_prompt="b"))
    assert messages == [{"role": "user", "content": "a<|im_end|>"}]


# --- loading ---


def test_options_come_from_all_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"general.sampling.top_p": 0.5, "general.sampling.min_p": 0.25, "general.sampling.temp": 0.125}
    path = tiny_llama(tmp_path / "m.gguf", **keys)
    monkeypatch.setenv("LOCALINFER_TEMP", "0.75")
    monkeypatch.setenv("LOCALINFER_CTX_SIZE", "100")
    with localinfer.load(path, ctx_size=64) as model:
        of_all_tests = Options(tune=False, prefix_store=False)
        assert model.options == replace(of_all_tests, ctx_size=64, temp=0.75, top_p=0.5, min_p=0.25)
        assert model.n_ctx == 64
    monkeypatch.setenv("LOCALINFER_TEMP", "hot")
    with pytest.raises(UsageError, match=r"^LOCALINFER_TEMP: must be a number"):
        localinfer.load(path)


def test_context_beyond_training_length_warns(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = tiny_llama(tmp_path / "m.gguf", n_ctx=64)
    localinfer.load(path, ctx_size=64).close()
    localinfer.load(path).close()
    assert not recwarn.list
    with pytest.warns(UserWarning, match="^ctx_size 65: .* trained on 64 tokens; longer contexts degrade$"):
        localinfer.load(path, ctx_size=65).close()


def test_draft_type_without_draft_model_warns(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    localinfer.load(path, spec_type="ngram,draft-simple").close()
    with pytest.warns(UserWarning, match="^spec_type draft-simple: no draft model: set spec_draft_model "):
        localinfer.load(path, spec_type="draft-simple").close()


def test_dir() -> None:
    code = "import localinfer, sys; print(*set(localinfer.__all__) - set(dir(localinfer)), 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_metadata_and_tensors(llama: Model) -> None:
    assert llama.metadata["general.architecture"] == "llama"
    assert llama.tensors["token_embd.weight"].shape == (llama.n_vocab, 256)


def test_changed_file_is_detected_at_the_next_run(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    with localinfer.load(path) as model:
        list(model.stream(PROMPT, n_predict=1))
        os.utime(path, (1, 1))
        for run in (lambda: model.stream(PROMPT), lambda: model.stream_chat(MESSAGES), lambda: model.logits([1])):
            with pytest.raises(LocalInferError, match="changed or truncated while in use"):
                run()


def test_all_nan_logits_are_an_error(tmp_path: Path) -> None:
    nan = np.full(256, np.nan, np.float32)
    path = tiny_llama(tmp_path / "m.gguf", **{"output_norm.weight": nan})
    with localinfer.load(path) as model, pytest.raises(LocalInferError, match=r"^logits: "):
        list(model.stream(PROMPT))


def test_import_is_lightweight() -> None:
    code = (
        "import sys, localinfer; localinfer.Options, localinfer.UsageError; "
        "assert not {'numpy', 'numba', 'jinja2'} & set(sys.modules); "
        "assert all(getattr(localinfer, name) for name in localinfer.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        localinfer.lod  # noqa: B018


def test_modules_of_other_models_and_options_are_not_imported(tmp_path: Path) -> None:
    unused = [
        *(f"localinfer.graph.recording.{topic}" for topic in ("altup", "experts", "recurrent")),
        *(f"localinfer.generation.{topic}" for topic in ("beam_search", "structured.constraint")),
        *("localinfer.chat_template.sandbox", "localinfer.runtime.scheduling.scheduler", "localinfer.server", "jinja2"),
    ]
    code = (
        "import sys, localinfer; localinfer.load(sys.argv[1]).generate('a', n_predict=1); "
        "print(*sys.modules.keys() & set(sys.argv[2:]))"
    )
    command = [sys.executable, "-c", code, str(tiny_llama(tmp_path / "m.gguf"))]
    assert subprocess.run([*command, *unused], capture_output=True, text=True).stdout == "\n"
    warm = subprocess.run([*command, "numba", "llvmlite"], capture_output=True, text=True)
    assert warm.stdout == "\n", "with cached kernels, nothing is compiled"


# --- samplers, probabilities, beams ---


def test_custom_sampler(llama: Model) -> None:
    observed: list[list[int]] = []

    def second_best(logits: np.ndarray, ids: list[int]) -> int:
        assert logits.dtype == np.float32
        assert logits.shape == (llama.n_vocab,)
        observed.append(ids)
        logits[logits.argmax()] = -np.inf  # a copy: modifying it has no other effect
        return int(logits.argmax())

    prompt = llama.tokenize(PROMPT)
    generated = ids_of(llama.stream(PROMPT, sampler=second_best, n_predict=4))
    assert observed == [prompt + generated[:n] for n in range(4)]
    logits = llama.logits(prompt + generated)[len(prompt) - 1 : -1]
    assert generated == np.argsort(-logits, axis=1)[:, 1].tolist()


def test_sampler_chain_as_custom_sampler(llama: Model) -> None:
    options = {"temp": 1.5, "seed": 9}
    chain = llama.sampler(**options)
    assert ids_of(llama.stream(PROMPT, sampler=chain)) == ids_of(llama.stream(PROMPT, **options))


@pytest.mark.parametrize("wrong", [1.5, None, "7", -1, 10**6])
def test_sampler_that_returns_an_invalid_token(llama: Model, wrong: object) -> None:
    with pytest.raises(UsageError, match=r"^sampler: "):
        list(llama.stream(PROMPT, sampler=lambda logits, ids: wrong))  # type: ignore[arg-type,return-value]
    with pytest.raises(UsageError, match=r"^sampler: must be a function"):
        llama.stream(PROMPT, sampler=5)  # type: ignore[arg-type]


def test_logprobs(llama: Model) -> None:
    prompt = llama.tokenize(PROMPT)
    pieces = list(llama.stream(prompt, logprobs=3, temp=3.0, n_predict=5, ignore_eos=False))
    logits = llama.logits([*prompt, *(piece.id for piece in pieces)])[len(prompt) - 1 : -1].astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for piece, row in zip(pieces, expected, strict=True):
        assert piece.logprob == pytest.approx(row[piece.id], abs=1e-6)
        assert [each.id for each in piece.top] == np.argsort(-row, kind="stable")[:3].tolist()
        assert [each.logprob for each in piece.top] == pytest.approx(np.sort(row)[::-1][:3].tolist(), abs=1e-6)
        assert [each.text for each in piece.top] == [llama.detokenize([each.id], special=True) for each in piece.top]
    assert next(llama.stream(prompt)).logprob is None


def test_score_matches_generation(model: Model) -> None:
    """Independently of the previous content of the KV cache."""
    prompt = model.tokenize(PROMPT)
    pieces = list(model.stream(prompt, logprobs=3))
    ids = [piece.id for piece in pieces]
    scored = model.score(prompt, ids, logprobs=3)
    assert [replace(piece, text="") for piece in scored] == [replace(piece, text="") for piece in pieces]
    clear_cache(model)
    assert model.score(prompt, ids, logprobs=3) == scored
    for piece in scored:
        assert piece.entropy is not None
        assert 0 <= piece.entropy <= np.log(model.n_vocab)
    with pytest.raises(UsageError, match="at least one token"):
        model.score(prompt, [])


def test_prefix_ids(llama: Model) -> None:
    first = list(llama.stream_chat(MESSAGES))
    ids = [piece.id for piece in first]
    run = llama.stream_chat(MESSAGES, prefix_ids=ids[:5], top_k=1)
    again = list(run)
    assert [piece.id for piece in again[:5]] == ids[:5]
    assert (len(again), run.stats.generated_tokens) == (5 + 12, 12)
    with pytest.raises(UsageError, match=r"token id .* is not in the vocabulary"):
        llama.stream_chat(MESSAGES, prefix_ids=[10**6])


def score(model: Model, prompt: list[int], ids: list[int]) -> float:
    logits = model.logits(prompt + ids)[len(prompt) - 1 : -1].astype(np.float64)
    logits[:, sorted(model.tokenizer.eog)] = -np.inf
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return float(logprobs[np.arange(len(ids)), ids].mean())


def test_beam_search_finds_more_probable_texts(model: Model) -> None:
    prompt = model.tokenize(PROMPT)
    greedy = ids_of(model.stream(prompt, temp=0, n_predict=6))
    one = ids_of(model.stream(prompt, beams=1, temp=0, n_predict=6))
    run = model.stream(prompt, beams=8, n_predict=6)
    pieces = list(run)
    actual = [piece.id for piece in pieces]
    assert one == greedy
    assert len(actual) == run.stats.generated_tokens == 6
    assert run.stats.finish_reason == "length"
    assert "".join(piece.text for piece in pieces) == model.detokenize(actual)
    assert score(model, prompt, actual) >= score(model, prompt, greedy) - 1e-6
    assert ids_of(model.stream(prompt, beams=8, n_predict=6)) == actual


def test_beam_search_ends_when_the_context_is_full(llama_file: Path) -> None:
    with localinfer.load(llama_file, ctx_size=20, ignore_eos=True) as small:
        run = small.stream(small.tokenize(PROMPT)[:15], beams=3)
        with pytest.raises(ContextOverflowError):
            list(run)
        assert run.stats.finish_reason == "context"
        assert run.stats.generated_tokens == 6


def test_beam_search_stops_at_a_stop_string(llama: Model) -> None:
    text = text_of(llama.stream(PROMPT, beams=2))
    assert text_of(llama.stream(PROMPT, beams=2, stop=[text[4:7]])) == text[: text.index(text[4:7])]


def test_beam_search_excludes_other_selection_options(llama: Model) -> None:
    for other in ({"logprobs": 2}, {"sampler": lambda logits, ids: 0}, {"choice": ["a"]}):
        with pytest.raises(UsageError, match=r"^beams: "):
            llama.stream(PROMPT, beams=2, **other)  # type: ignore[arg-type]
