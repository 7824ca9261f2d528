"""The Python face on tiny models: runs, their ends, the reuse of prefixes, interrupts, errors."""

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
from localinfer import ContextOverflow, LocalInferError, Model, Options, Piece, Unsupported, UsageError

PROMPT = "Hello and the other one then and there"
TALK = [{"role": "user", "content": "Hello"}]


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
    lively = {"temp": 50.0, "top_k": 0, "min_p": 0.0}  # this model is very sure of itself
    with localinfer.load(path, threads=2, ctx_size=256, ignore_eos=True, n_predict=12, seed=3, **lively) as model:
        yield model


@pytest.fixture(params=["llama", "gemma"])
def model(request: pytest.FixtureRequest) -> Model:
    chosen: Model = request.getfixturevalue(request.param)
    return chosen


def forget(model: Model) -> None:
    """Fill the cache with something else, so that the next run starts from nothing."""
    model.logits([0, 0, 0])


def ids_of(pieces: Iterator[Piece]) -> list[int]:
    return [piece.id for piece in pieces]


def text_of(pieces: Iterator[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


# --- runs ---


def test_turns_that_fit(llama: Model) -> None:
    """What is left takes half of the context, begins with a question, and is not cut again at once."""
    turn = [{"role": "user", "content": "Hello " * 4}, {"role": "assistant", "content": "there " * 4}]
    rules = {"role": "system", "content": "then"}
    long = [rules, *turn * 40, *TALK]
    assert len(llama.render(long).ids) > llama.n_ctx
    left = llama.fitting(long)
    assert left[0] == rules
    assert left[1:] == long[-len(left) + 1 :]
    assert left[1]["role"] == "user"
    assert len(llama.render(left).ids) <= llama.n_ctx // 2 < len(llama.render([rules, *turn, *left[1:]]).ids)
    assert llama.fitting(left) == left
    assert llama.fitting(TALK) == TALK


def test_a_cache_that_was_saved(llama: Model, tmp_path: Path) -> None:
    expected = ids_of(llama.generate(PROMPT))
    llama.save_cache(tmp_path / "cache")
    forget(llama)
    assert llama.load_cache(tmp_path / "cache") == len(llama.tokenize(PROMPT)) + 11  # the last one was not computed
    assert ids_of(llama.generate(PROMPT)) == expected
    assert llama.stats.reused_tokens == llama.stats.prompt_tokens - 1


def test_a_damaged_cache_costs_time_alone(llama: Model, tmp_path: Path) -> None:
    expected = ids_of(llama.generate(PROMPT))
    llama.save_cache(tmp_path / "cache")
    (tmp_path / "cache").write_bytes((tmp_path / "cache").read_bytes()[:-1])
    with pytest.warns(UserWarning, match="damaged; it is left aside"):
        assert llama.load_cache(tmp_path / "cache") == 0
    assert ids_of(llama.generate(PROMPT)) == expected
    (tmp_path / "cache").write_text("an essay that is not to be overwritten, of more than fifty letters")
    with pytest.raises(UsageError, match="is there, and is no snapshot"):
        llama.load_cache(tmp_path / "cache")


def test_a_run_gives_pieces_and_statistics(model: Model) -> None:
    pieces = list(model.generate(PROMPT))
    stats = model.stats
    assert len(pieces) == stats.generated_tokens == 12
    assert "".join(piece.text for piece in pieces) == model.detokenize([piece.id for piece in pieces])
    assert stats.prompt_tokens == len(model.tokenize(PROMPT))
    assert stats.finish_reason == "length"
    assert stats.seed == 3
    assert stats.prompt_seconds > 0
    assert stats.generate_seconds > 0


def test_tokens_are_a_prompt_too(model: Model) -> None:
    assert ids_of(model.generate(model.tokenize(PROMPT))) == ids_of(model.generate(PROMPT))
    assert ids_of(model.generate(np.array(model.tokenize(PROMPT)))) == ids_of(model.generate(PROMPT))  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_tokens(model: Model) -> None:
    first = ids_of(model.generate(PROMPT, seed=1))
    assert first == ids_of(model.generate(PROMPT, seed=1))
    assert first != ids_of(model.generate(PROMPT, seed=2))
    random = ids_of(model.generate(PROMPT, seed=-1))
    assert random == ids_of(model.generate(PROMPT, seed=model.stats.seed))


def test_logits_teacher_forced_match_a_greedy_run(model: Model) -> None:
    prompt = model.tokenize(PROMPT)
    generated = ids_of(model.generate(prompt, temp=0))
    logits = model.logits(prompt + generated)
    assert logits.shape == (len(prompt) + 12, model.n_vocab)
    assert logits.dtype == np.float32
    allowed = np.delete(np.arange(model.n_vocab), sorted(model.tokenizer.eog))
    expected = allowed[logits[len(prompt) - 1 : -1, allowed].argmax(axis=1)]
    assert expected.tolist() == generated


def test_the_end_of_generation_ends_a_run(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ids_of(llama.generate(PROMPT, temp=0))
    monkeypatch.setattr(llama.tokenizer, "eog", frozenset({ids[5]}))
    expected = ids[: ids.index(ids[5])]
    assert ids_of(llama.generate(PROMPT, temp=0, ignore_eos=False)) == expected
    assert llama.stats.finish_reason == "stop"
    assert ids[5] not in ids_of(llama.generate(PROMPT, temp=0, ignore_eos=True))


def test_a_stop_text_ends_a_run_before_it(llama: Model) -> None:
    pieces = list(llama.generate(PROMPT, seed=5))
    text = "".join(piece.text for piece in pieces)
    seam = len(pieces[0].text + pieces[1].text + pieces[2].text)
    stop = text[seam - 1 : seam + 1]  # in two tokens
    assert text_of(llama.generate(PROMPT, seed=5, stop=["never in there", stop])) == text[: text.index(stop)]
    assert llama.stats.finish_reason == "stop"
    assert text_of(llama.generate(PROMPT, seed=5, stop=[text + "!"])) == text
    assert llama.stats.finish_reason == "length"


def test_characters_are_never_split(llama: Model) -> None:
    """A random model over bytes produces much that is no UTF-8: all of it comes out once."""
    for seed in range(5):
        pieces = list(llama.generate(PROMPT, seed=seed, temp=5, top_k=0, n_predict=40))
        assert "".join(piece.text for piece in pieces) == llama.detokenize([piece.id for piece in pieces])
        assert len(pieces) == 40


def test_options_of_a_run_are_checked(llama: Model) -> None:
    with pytest.raises(UsageError, match=r"^temp: must be "):
        llama.generate(PROMPT, temp=-1)
    with pytest.raises(UsageError, match=r"^ctx_size: can only be chosen when the model is loaded$"):
        llama.generate(PROMPT, ctx_size=5)
    with pytest.raises(UsageError, match=r"^max_tokens: no such option"):
        llama.generate(PROMPT, max_tokens=5)


@pytest.mark.parametrize("prompt", [["a"], [1.5], [[1]], [-1], [10**6], [2**70], [None]])
def test_prompts_that_are_no_tokens(llama: Model, prompt: Sequence[int]) -> None:
    with pytest.raises(UsageError, match=r"^tokens: "):
        llama.generate(prompt)
    with pytest.raises(UsageError, match=r"^tokens: "):
        llama.logits(prompt)


def test_tokens_may_come_one_by_one(llama: Model) -> None:
    expected = llama.logits([5, 6, 7])
    np.testing.assert_array_equal(llama.logits(iter([5, 6, 7])), expected)  # type: ignore[arg-type]
    llama.engine.reset()
    np.testing.assert_array_equal(llama.engine.logits(iter([5, 6, 7])), expected)
    assert ids_of(llama.generate(iter([5, 6, 7]))) == ids_of(llama.generate([5, 6, 7]))  # type: ignore[arg-type]
    forget(llama)


@pytest.mark.parametrize("wrong", [5, None, 1.5, b"m.gguf", ["m.gguf"]])
def test_what_is_neither_a_path_nor_a_text(llama: Model, wrong: object) -> None:
    with pytest.raises(UsageError, match=r"^path_or_name: must be a path or a name, not "):
        localinfer.load(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^text: must be a text, not "):
        llama.tokenize(wrong)  # type: ignore[arg-type]


def test_an_empty_prompt_needs_a_bos(llama: Model, gemma: Model) -> None:
    with pytest.raises(UsageError, match=r"^the prompt is empty"):
        llama.generate("")
    with pytest.raises(UsageError, match=r"^the prompt is empty"):
        gemma.generate([])
    assert len(ids_of(gemma.generate(""))) == 12
    assert gemma.stats.prompt_tokens == 1


# --- reuse of prefixes ---


@pytest.mark.parametrize("greedy", [{}, {"temp": 0}])
def test_a_reused_prefix_changes_nothing(model: Model, greedy: dict[str, object]) -> None:
    prompt = model.tokenize(PROMPT)
    first = ids_of(model.generate(prompt, **greedy))
    longer = prompt + first + model.tokenize(" and", add_special=False)
    reused = ids_of(model.generate(longer, **greedy))
    assert model.stats.reused_tokens == len(prompt) + len(first) - 1  # the last one was never evaluated
    forget(model)
    assert ids_of(model.generate(longer, **greedy)) == reused
    assert model.stats.reused_tokens == 0


def test_at_least_one_token_is_computed(llama: Model) -> None:
    forget(llama)
    first = ids_of(llama.generate(PROMPT))
    assert ids_of(llama.generate(PROMPT)) == first
    assert llama.stats.reused_tokens == llama.stats.prompt_tokens - 1


def test_a_window_that_moved_on_is_computed_again(gemma: Model) -> None:
    """The sliding window holds 16 tokens: what was before them is gone, and the prompt is read anew."""
    prompt = gemma.tokenize(PROMPT)
    first = ids_of(gemma.generate(prompt, n_predict=60))
    assert ids_of(gemma.generate(prompt, n_predict=60)) == first


def test_a_conversation_goes_on_from_the_cache(llama: Model) -> None:
    forget(llama)
    answer = text_of(llama.chat(TALK, top_k=1, stop=["\ufffd"]))
    talk = [*TALK, {"role": "assistant", "content": answer}, {"role": "user", "content": "Hello again"}]
    before = llama.stats.prompt_tokens
    reused = ids_of(llama.chat(talk))
    assert before <= llama.stats.reused_tokens < llama.stats.prompt_tokens
    forget(llama)
    assert ids_of(llama.chat(talk)) == reused


TOOLS = [{"name": "now", "parameters": {}}]
SHOWS_TOOLS = """{% if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


def saying(model: Model, text: str) -> localinfer.model.SamplerFunction:
    """A sampler that chooses what is in the text, whatever the model thinks of it."""
    ids = iter(model.tokenize(text, add_special=False, parse_special=True))
    return lambda *_: next(ids)


def test_calls_of_tools_are_told_apart(llama: Model) -> None:
    said = 'I look.\n<tool_call>{"name": "now", "arguments": {"zone": "</tool_call>"}}</tool_call>'
    n = len(llama.tokenize(said, add_special=False))
    how = {"chat_template": SHOWS_TOOLS, "n_predict": n}
    pieces = list(llama.chat(TALK, tools=TOOLS, sampler=saying(llama, said), **how))
    assert llama.detokenize(ids_of(iter(pieces))) == said
    assert text_of(iter(pieces)) == "I look."
    [call] = [call for piece in pieces for call in piece.calls]
    assert (call.name, call.arguments, call.id) == ("now", {"zone": "</tool_call>"}, "call00000")
    assert text_of(llama.chat(TALK, sampler=saying(llama, said), **how)) == said  # without tools, none is called

    asked = {"role": "assistant", "content": "I look.", "tool_calls": [call.as_entry()]}
    told = [*TALK, asked, {"role": "tool", "content": "noon", "tool_call_id": call.id, "name": "now"}]
    [*_, last] = llama.chat(told, tools=TOOLS, sampler=saying(llama, said), **how)
    assert [call.id for call in last.calls] == ["call00001"]
    assert "tool: noon" in llama.render(told, tools=TOOLS, chat_template=SHOWS_TOOLS).text


def test_a_call_that_is_cut_off_is_text(llama: Model) -> None:
    said = 'Yes <tool_call>{"name": "now", "arguments": {'
    n = len(llama.tokenize(said, add_special=False))
    with pytest.warns(UserWarning, match="cannot be read"):
        pieces = list(llama.chat(
            TALK, tools=TOOLS, sampler=saying(llama, said), chat_template=SHOWS_TOOLS, n_predict=n))  # fmt: skip
    assert text_of(iter(pieces)) == said
    assert llama.stats.finish_reason == "length"


def test_a_template_that_shows_no_tools(llama: Model) -> None:
    with pytest.warns(UserWarning, match="shows no tools"):
        llama.render(TALK, tools=TOOLS, chat_template="chatml")


def test_same_seed_same_tokens_for_any_threads_with_and_without_reuse(smollm2: Path) -> None:
    """Two turns with a real model: the second one goes on from the cache, or is computed from nothing."""
    seen = set()
    for threads in (1, 2, 3):
        with localinfer.load(smollm2, threads=threads, ctx_size=512, seed=11, n_predict=24, temp=1.0) as model:
            answer = text_of(model.chat(TALK))
            talk = [*TALK, {"role": "assistant", "content": answer}, {"role": "user", "content": "Why?"}]
            reused = tuple(ids_of(model.chat(talk)))
            assert model.stats.reused_tokens > 30
            forget(model)
            assert tuple(ids_of(model.chat(talk))) == reused
            seen.add((answer, reused))
    assert len(seen) == 1


# --- the context ---


def test_a_prompt_may_just_fill_the_context(llama: Model) -> None:
    pieces = llama.generate([5] * 256)
    assert isinstance(next(pieces), Piece)
    with pytest.raises(ContextOverflow, match=r"256 tokens of prompt and 1 of text, it holds 256; --ctx-size .*ring"):
        next(pieces)
    assert llama.stats.finish_reason == "context"


@pytest.mark.parametrize(("length", "generated"), [(254, 3), (255, 2), (256, 1)])
def test_a_full_context_ends_a_run_after_its_last_piece(llama: Model, length: int, generated: int) -> None:
    expected = ids_of(llama.generate([5] * length, n_predict=generated))
    pieces = llama.generate([5] * length)
    assert [next(pieces).id for _ in range(generated)] == expected
    with pytest.raises(ContextOverflow) as error:
        next(pieces)
    assert error.value.exit_code == 5


def test_a_prompt_that_is_too_long_is_refused_before_any_work(llama: Model) -> None:
    llama.logits([1, 2, 3])
    with pytest.raises(ContextOverflow, match=r"^the prompt has 257 tokens, the context holds 256; --ctx-size .*ring"):
        llama.generate([5] * 257)
    assert llama.engine.n_past == 3


def test_a_ring_generates_without_end(llama_file: Path) -> None:
    with localinfer.load(llama_file, ctx_size=32, ctx_policy="ring", ignore_eos=True, seed=1) as model:
        assert len(ids_of(model.generate(PROMPT, n_predict=100))) == 100
        assert model.stats.finish_reason == "length"
        assert len(ids_of(model.generate([5] * 80, n_predict=3, repeat_penalty=1.1, repeat_last_n=-1))) == 3


# --- interrupts ---


def test_an_interrupt_in_the_prompt_leaves_the_model_usable(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ids_of(llama.generate(PROMPT))
    forget(llama)
    evaluate = llama.engine.evaluate

    def interrupted(tokens: Sequence[int], progress: object = None, keep: int = 0) -> None:
        evaluate(tokens[: len(tokens) // 2])  # one batch was whole when Ctrl-C came
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llama.engine, "evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(llama.generate(PROMPT))
    assert llama.stats.finish_reason == "interrupted"
    half = llama.engine.n_past
    assert ids_of(llama.generate(PROMPT)) == expected
    assert llama.stats.reused_tokens == half > 0


def test_a_run_may_be_left(llama: Model) -> None:
    expected = ids_of(llama.generate(PROMPT))
    for piece in llama.generate(PROMPT):
        if piece.id == expected[3]:
            break
    assert llama.stats.finish_reason == "interrupted"
    assert ids_of(llama.generate(PROMPT)) == expected


def test_another_run_ends_the_one_before(llama: Model) -> None:
    first, second = llama.generate(PROMPT), llama.generate("Hello")
    with pytest.raises(LocalInferError, match="another one was started"):
        next(first)
    next(second)
    llama.logits([1, 2])
    with pytest.raises(LocalInferError, match="another one was started"):
        next(second)


# --- the end of a model, and several threads ---


def test_a_closed_model_says_so_at_once(llama_file: Path) -> None:
    model = localinfer.load(llama_file, ctx_size=64, ignore_eos=True, seed=1)
    begun = model.generate(PROMPT)
    next(begun)
    model.close()
    model.close()
    runs = (
        lambda: next(begun),
        lambda: model.generate(PROMPT),
        lambda: model.chat(TALK),
        lambda: model.logits([1]),
        lambda: model.engine.evaluate([1]),
    )
    for run in runs:
        with pytest.raises(LocalInferError, match=r"^the model is closed$"):
            run()


def test_closing_ends_a_prompt_that_another_thread_reads(llama_file: Path) -> None:
    reading = threading.Event()
    model = localinfer.load(llama_file, ctx_size=256, batch_size=1, progress=lambda *_: reading.set())
    with ThreadPoolExecutor(1) as pool:
        reading.clear()
        logits = pool.submit(lambda: next(model.generate([5] * 256)))
        assert reading.wait(30)
        model.close()
        with pytest.raises(LocalInferError, match=r"^the model is closed$"):
            logits.result(30)


def test_threads_take_turns(llama: Model) -> None:
    prompts = [[number + 3] * 20 for number in range(4)]
    expected = [llama.logits(prompt) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for mine, theirs in zip(expected, pool.map(llama.logits, prompts), strict=True):
                np.testing.assert_array_equal(mine, theirs)


def test_of_several_threads_the_last_one_that_begins_a_run_ends_it(llama: Model) -> None:
    expected = [ids_of(llama.generate([number + 3] * 20)) for number in range(4)]

    def run(number: int) -> list[int]:
        ids = []
        with contextlib.suppress(LocalInferError):  # another one was started
            ids.extend(piece.id for piece in llama.generate([number + 3] * 20))
        return ids

    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            answers = list(pool.map(run, range(4)))
            assert any(len(ids) == 12 for ids in answers)
            for ids, whole in zip(answers, expected, strict=True):
                assert ids == whole[: len(ids)]


# --- chat ---


def test_the_system_prompt_goes_first(llama: Model) -> None:
    told = [{"role": "system", "content": "Be brief."}, *TALK]
    expected = ids_of(llama.chat(told))
    length = llama.stats.prompt_tokens
    assert ids_of(llama.chat(TALK, system_prompt="Be brief.")) == expected
    assert ids_of(llama.chat(told, system_prompt="Be long.")) == expected
    assert llama.stats.prompt_tokens == length


def test_a_model_without_template_says_what_it_can_do(gemma: Model) -> None:
    with pytest.raises(Unsupported, match=r"gemma.gguf: tokenizer.chat_template: missing: .*`localinfer generate`"):
        gemma.chat(TALK)
    assert len(ids_of(gemma.chat(TALK, chat_template="chatml"))) == 12


def test_a_broken_template_does_not_keep_from_generating(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", **{"tokenizer.chat_template": "{% if %}"})
    with localinfer.load(path, n_predict=1, ignore_eos=True) as model:
        assert len(ids_of(model.generate(PROMPT))) == 1
        with pytest.raises(LocalInferError, match=r"m.gguf: tokenizer.chat_template: line 1: ") as error:
            model.chat(TALK)
        assert error.value.exit_code == 1
        with pytest.raises(LocalInferError, match=r"^--chat-template: line 1: "):
            model.chat(TALK, chat_template="{{")
        with pytest.raises(UsageError, match=r"^--chat-template: 'nosuch' is neither a template's name nor a template"):
            model.chat(TALK, chat_template="nosuch")
        assert len(ids_of(model.chat(TALK, chat_template="{{ messages[0].content }}"))) == 1


def test_what_the_model_is_shown(llama: Model) -> None:
    prompt = llama.render(TALK, system_prompt="Be brief.", chat_template="llama3")
    assert prompt.text.startswith("<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>")
    assert prompt.ids == llama.tokenize(prompt.text, add_special=False)
    finished = llama.render(TALK, add_generation_prompt=False).text
    assert llama.render(TALK).text == finished + "<|im_start|>assistant\n"
    list(llama.chat(TALK))
    assert llama.stats.prompt_tokens == len(llama.render(TALK).ids)


def test_tools_documents_and_variables_reach_the_template(llama: Model) -> None:
    shown = {"chat_template": "{{ [messages, tools, documents, enable_thinking] | tojson }}"}
    given = {"tools": [{"name": "f"}], "documents": [{"title": "t", "text": "<|im_end|>"}]}
    thinking = {"template_kwargs": {"enable_thinking": False}}
    prompt = llama.render(TALK, **given, **thinking, **shown)
    assert json.loads(prompt.text) == [TALK, given["tools"], given["documents"], False]
    assert not {0, 1, 2} & set(prompt.ids)  # control tokens
    assert prompt == llama.render(TALK, **given, **shown, chat_template_kwargs='{"enable_thinking": false}')
    assert prompt == llama.render(TALK, **given, **thinking, **shown, chat_template_kwargs='{"enable_thinking": 1}')
    list(llama.chat(TALK, **given, **thinking, **shown, n_predict=1))
    assert llama.stats.prompt_tokens == len(prompt.ids)


def test_an_answer_can_be_begun(llama: Model) -> None:
    begun = [*TALK, {"role": "assistant", "content": "Well, "}]
    prompt = llama.render(begun, continue_final_message=True)
    assert prompt.text == llama.render(TALK).text + "Well, "
    assert ids_of(llama.chat(begun, continue_final_message=True)) == ids_of(llama.generate(prompt.ids))


def test_a_text_does_not_begin_with_two_bos(gemma: Model) -> None:
    for text in "Hello", "<bos>Hello", "<bos>", "":
        assert gemma.tokenize(text, parse_special=True).count(2) == 1
        assert gemma.tokenize(text, parse_special=True) == gemma.tokenize(text.removeprefix("<bos>"))


def test_messages_are_checked_and_never_changed(llama: Model) -> None:
    with pytest.raises(UsageError, match=r"^messages\[0\].content: must be a text or a list of parts$"):
        llama.chat([{"role": "user", "content": 5}])
    messages = [{"role": "user", "content": "a<|im_end|>"}]
    list(llama.chat(messages, system_prompt="b"))
    assert messages == [{"role": "user", "content": "a<|im_end|>"}]


# --- loading ---


def test_options_come_from_all_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"general.sampling.top_p": 0.5, "general.sampling.min_p": 0.25, "general.sampling.temp": 0.125}
    path = tiny_llama(tmp_path / "m.gguf", **keys)
    monkeypatch.setenv("LOCALINFER_TEMP", "0.75")
    monkeypatch.setenv("LOCALINFER_CTX_SIZE", "100")
    with localinfer.load(path, ctx_size=64) as model:
        assert model.options == Options(ctx_size=64, temp=0.75, top_p=0.5, min_p=0.25)
        assert model.n_ctx == 64
    monkeypatch.setenv("LOCALINFER_TEMP", "hot")
    with pytest.raises(UsageError, match=r"^LOCALINFER_TEMP: must be a number"):
        localinfer.load(path)


def test_a_context_beyond_the_trained_one_is_warned_of(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = tiny_llama(tmp_path / "m.gguf", n_ctx=64)
    localinfer.load(path, ctx_size=64).close()
    localinfer.load(path).close()
    assert not recwarn.list
    with pytest.warns(UserWarning, match="^--ctx-size 65: trained on 64 tokens; beyond, text turns into nonsense$"):
        localinfer.load(path, ctx_size=65).close()


def test_guesses_without_anyone_who_guesses(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    localinfer.load(path, spec_type="ngram,draft-simple").close()
    with pytest.warns(UserWarning, match="^--spec-type draft-simple: no model guesses: --spec-draft-model names one$"):
        localinfer.load(path, spec_type="draft-simple").close()


def test_dir_shows_what_there_is() -> None:
    code = "import localinfer, sys; print(*set(localinfer.__all__) - set(dir(localinfer)), 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_metadata_and_tensors_are_the_files(llama: Model) -> None:
    assert llama.metadata["general.architecture"] == "llama"
    assert llama.tensors["token_embd.weight"].shape == (llama.n_vocab, 256)


def test_a_file_that_changed_is_noticed_at_the_next_prompt(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    with localinfer.load(path) as model:
        list(model.generate(PROMPT, n_predict=1))
        os.utime(path, (1, 1))
        for run in (lambda: model.generate(PROMPT), lambda: model.chat(TALK), lambda: model.logits([1])):
            with pytest.raises(LocalInferError, match="changed or truncated while in use"):
                run()


def test_all_nan_logits_are_an_error(tmp_path: Path) -> None:
    nan = np.full(256, np.nan, np.float32)
    path = tiny_llama(tmp_path / "m.gguf", **{"output_norm.weight": nan})
    with localinfer.load(path) as model, pytest.raises(LocalInferError, match=r"^logits: "):
        list(model.generate(PROMPT))


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, localinfer; localinfer.Options, localinfer.UsageError; "
        "assert not {'numpy', 'numba', 'jinja2'} & set(sys.modules); "
        "assert all(getattr(localinfer, name) for name in localinfer.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        localinfer.lod  # noqa: B018


# --- samplers, probabilities, beams ---


def test_a_sampler_of_one_s_own(llama: Model) -> None:
    seen: list[list[int]] = []

    def second_best(logits: np.ndarray, ids: list[int]) -> int:
        assert logits.dtype == np.float32
        assert logits.shape == (llama.n_vocab,)
        seen.append(ids)
        logits[logits.argmax()] = -np.inf  # its own: nobody else sees this
        return int(logits.argmax())

    prompt = llama.tokenize(PROMPT)
    generated = ids_of(llama.generate(PROMPT, sampler=second_best, n_predict=4))
    assert seen == [prompt + generated[:n] for n in range(4)]
    logits = llama.logits(prompt + generated)[len(prompt) - 1 : -1]
    assert generated == np.argsort(-logits, axis=1)[:, 1].tolist()


def test_the_chain_is_a_sampler_as_one_s_own(llama: Model) -> None:
    options = {"temp": 1.5, "seed": 9}
    chain = llama.sampler(**options)
    assert ids_of(llama.generate(PROMPT, sampler=chain)) == ids_of(llama.generate(PROMPT, **options))


@pytest.mark.parametrize("wrong", [1.5, None, "7", -1, 10**6])
def test_a_sampler_that_returns_no_token(llama: Model, wrong: object) -> None:
    with pytest.raises(UsageError, match=r"^sampler: "):
        list(llama.generate(PROMPT, sampler=lambda logits, ids: wrong))  # type: ignore[arg-type,return-value]
    with pytest.raises(UsageError, match=r"^sampler: must be a function"):
        llama.generate(PROMPT, sampler=5)  # type: ignore[arg-type]


def test_probabilities_of_pieces(llama: Model) -> None:
    prompt = llama.tokenize(PROMPT)
    pieces = list(llama.generate(prompt, logprobs=3, temp=3.0, n_predict=5, ignore_eos=False))
    logits = llama.logits([*prompt, *(piece.id for piece in pieces)])[len(prompt) - 1 : -1].astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for piece, row in zip(pieces, expected, strict=True):
        assert piece.logprob == pytest.approx(row[piece.id], abs=1e-6)
        assert [each.id for each in piece.top] == np.argsort(-row, kind="stable")[:3].tolist()
        assert [each.logprob for each in piece.top] == pytest.approx(np.sort(row)[::-1][:3].tolist(), abs=1e-6)
        assert [each.text for each in piece.top] == [llama.detokenize([each.id], special=True) for each in piece.top]
    assert next(llama.generate(prompt)).logprob is None


def test_a_text_is_scored_as_it_was_generated(model: Model) -> None:
    """Whatever is in the cache before."""
    prompt = model.tokenize(PROMPT)
    pieces = list(model.generate(prompt, logprobs=3))
    ids = [piece.id for piece in pieces]
    scored = model.score(prompt, ids, logprobs=3)
    assert [replace(piece, text="") for piece in scored] == [replace(piece, text="") for piece in pieces]
    forget(model)
    assert model.score(prompt, ids, logprobs=3) == scored
    for piece in scored:
        assert piece.entropy is not None
        assert 0 <= piece.entropy <= np.log(model.n_vocab)
    with pytest.raises(UsageError, match="at least one token"):
        model.score(prompt, [])


def test_an_answer_that_has_begun(llama: Model) -> None:
    first = list(llama.chat(TALK))
    ids = [piece.id for piece in first]
    again = list(llama.chat(TALK, begun=ids[:5], top_k=1))
    assert [piece.id for piece in again[:5]] == ids[:5]
    assert (len(again), llama.stats.generated_tokens) == (5 + 12, 12)
    with pytest.raises(UsageError, match="there is no token"):
        llama.chat(TALK, begun=[10**6])


def score(model: Model, prompt: list[int], ids: list[int]) -> float:
    logits = model.logits(prompt + ids)[len(prompt) - 1 : -1].astype(np.float64)
    logits[:, sorted(model.tokenizer.eog)] = -np.inf
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return float(logprobs[np.arange(len(ids)), ids].mean())


def test_beams_find_more_probable_texts(model: Model) -> None:
    prompt = model.tokenize(PROMPT)
    greedy = ids_of(model.generate(prompt, temp=0, n_predict=6))
    one = ids_of(model.generate(prompt, beams=1, temp=0, n_predict=6))
    pieces = list(model.generate(prompt, beams=8, n_predict=6))
    found = [piece.id for piece in pieces]
    assert one == greedy
    assert len(found) == model.stats.generated_tokens == 6
    assert model.stats.finish_reason == "length"
    assert "".join(piece.text for piece in pieces) == model.detokenize(found)
    assert score(model, prompt, found) >= score(model, prompt, greedy) - 1e-6
    assert ids_of(model.generate(prompt, beams=8, n_predict=6)) == found


def test_beams_end_where_the_context_is_full(llama_file: Path) -> None:
    with localinfer.load(llama_file, ctx_size=20, ignore_eos=True) as small:
        run = small.generate(small.tokenize(PROMPT)[:15], beams=3)
        with pytest.raises(ContextOverflow):
            list(run)
        assert small.stats.finish_reason == "context"
        assert small.stats.generated_tokens == 6


def test_beams_stop_at_a_stop_text(llama: Model) -> None:
    text = text_of(llama.generate(PROMPT, beams=2))
    assert text_of(llama.generate(PROMPT, beams=2, stop=[text[4:7]])) == text[: text.index(text[4:7])]


def test_beams_exclude_what_chooses_otherwise(llama: Model) -> None:
    for other in ({"logprobs": 2}, {"sampler": lambda logits, ids: 0}, {"choice": ["a"]}):
        with pytest.raises(UsageError, match=r"^--beams: "):
            llama.generate(PROMPT, beams=2, **other)  # type: ignore[arg-type]
