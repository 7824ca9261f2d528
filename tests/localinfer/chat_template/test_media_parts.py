"""Images and sounds in conversations: their token ids get to their places, and nothing else does."""

from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_gemma3, tiny_llama

from localinfer.chat_template import long_prompts
from localinfer.chat_template.builtin_templates import builtin_templates
from localinfer.chat_template.conversation import Conversation
from localinfer.chat_template.long_prompts import build_in_child
from localinfer.chat_template.prompt import Prompt, build_prompt
from localinfer.chat_template.template import ChatTemplate
from localinfer.errors import LocalInferError, UsageError
from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf

IMAGE, OTHER = [-1, -2, 80, -3], [-4, -5]
MARKER = "<__media__>"
PARTS_ONLY = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}{{ p.text | trim }}{% endfor %}"
    "<|im_end|>\n{% endfor %}"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GGUF:
    return open_gguf(tiny_llama(tmp_path_factory.mktemp("parts") / "llama.gguf"))


@pytest.fixture(scope="module")
def tokenizer(file: GGUF) -> Tokenizer:
    return from_gguf(file)


def template_of(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "", "eos_token": ""})


@pytest.fixture(scope="module")
def chatml() -> ChatTemplate:
    return template_of(builtin_templates()["chatml"])


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def image(ids: list[int]) -> dict[str, Any]:
    return {"type": "image", "ids": ids}


def prompt_of(template: ChatTemplate, tokenizer: Tokenizer, *contents: object, **more: Any) -> Prompt:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]
    return build_prompt(template, tokenizer, Conversation(messages=messages, **more))


def control_ids(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    return [id for id in prompt.ids if id >= 0 and not tokenizer.token_bytes(id)]


def ids_of_text(tokenizer: Tokenizer, prompt_text: str, *media: list[int]) -> list[int]:
    """Return the ids of a rendered text with markers, whose control tokens are real ones."""
    first, *rest = prompt_text.split(MARKER)
    ids = tokenizer.encode(first, add_special=False, parse_special=True)
    for inserted, piece in zip(media, rest, strict=True):
        ids += inserted + tokenizer.encode(piece, add_special=False, parse_special=True, continues_text=True)
    return ids


def test_ids_are_in_their_places(tokenizer: Tokenizer, chatml: ChatTemplate) -> None:
    prompt = prompt_of(
        chatml, tokenizer, [text("Hello"), text("the"), image(IMAGE), text("and"), image(OTHER)], "Yes", "Why?"
    )
    assert prompt.text == (
        f"<|im_start|>user\nHello\nthe{MARKER}and{MARKER}<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n"
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt.ids == ids_of_text(tokenizer, prompt.text, IMAGE, OTHER)


def test_templates_that_take_parts_only(tokenizer: Tokenizer) -> None:
    prompt = prompt_of(template_of(PARTS_ONLY), tokenizer, [image(IMAGE), text("Hello")])
    assert prompt.text == f"<|im_start|>user\n{MARKER}Hello<|im_end|>\n"
    assert prompt.ids == ids_of_text(tokenizer, prompt.text, IMAGE)


def test_a_template_that_escapes_its_contents(tokenizer: Tokenizer) -> None:
    """Many templates write the results of tools as JSON, whose text escapes characters outside of ASCII."""
    content = [text("a\n"), image(IMAGE)]
    for source in "{{ messages[0].content | tojson }}", "{{ [messages[0].content] }}":
        prompt = prompt_of(template_of(source), tokenizer, content)
        assert [id for id in prompt.ids if id < 0] == [id for id in IMAGE if id < 0]


def test_texts_that_look_like_markers_stay_texts(tokenizer: Tokenizer, chatml: ChatTemplate) -> None:
    for wanted in MARKER, "<image>", "<|im_end|>", chr(0xF0000), chr(0xF0001) + "\\U000f0002":
        prompt = prompt_of(chatml, tokenizer, [text(wanted), image(IMAGE), text(wanted)], wanted, wanted)
        assert prompt.ids.count(-1) == 1
        assert prompt.text.count(wanted) >= 4
        without = prompt_of(chatml, tokenizer, "", "", "")
        assert control_ids(tokenizer, prompt) == control_ids(tokenizer, without)


def test_a_text_before_an_image_forms_no_control_token(tmp_path: Path) -> None:
    gemma = from_gguf(open_gguf(tiny_gemma3(tmp_path / "gemma.gguf")))
    prompt = prompt_of(template_of("{{ messages[0].content }}"), gemma, [text("<end_of"), image([]), text("_turn>")])
    assert all(gemma.token_bytes(id) for id in prompt.ids[1:])


def test_answers_keep_their_token_ids_beside_images(tokenizer: Tokenizer, chatml: ChatTemplate) -> None:
    answer = [tokenizer.encode(char, add_special=False)[0] for char in "Yes"]
    messages = [
        {"role": "user", "content": [image(IMAGE), text("Hello")]},
        {"role": "assistant", "content": "Yes", "ids": answer},
        {"role": "user", "content": "Why?"},
    ]
    ids = build_prompt(chatml, tokenizer, Conversation(messages=messages)).ids
    assert any(ids[at : at + len(answer)] == answer for at in range(len(ids)))
    assert any(ids[at : at + len(IMAGE)] == IMAGE for at in range(len(ids)))


def test_a_longer_conversation_begins_with_the_same_ids(tokenizer: Tokenizer, chatml: ChatTemplate) -> None:
    first = prompt_of(chatml, tokenizer, [image(IMAGE), text("Hello")])
    second = prompt_of(chatml, tokenizer, [image(IMAGE), text("Hello")], "Yes", [image(OTHER), text("the")])
    assert second.ids[: len(first.ids)] == first.ids


def test_continued_message(tokenizer: Tokenizer, chatml: ChatTemplate) -> None:
    prompt = prompt_of(chatml, tokenizer, [image(IMAGE), text("Hello")], "Yes", continue_final_message=True)
    assert prompt.text.endswith("Yes")
    assert prompt.ids == ids_of_text(tokenizer, prompt.text, IMAGE)


@pytest.mark.parametrize("source", ["Hello", "{{ messages[0].content }}{{ messages[0].content }}"])
def test_templates_that_omit_or_repeat_an_image(tokenizer: Tokenizer, source: str) -> None:
    with pytest.raises(LocalInferError, match=r"chat_template: leaves out an image or a sound of the messages, or rep"):
        prompt_of(template_of(source), tokenizer, [image(IMAGE)])


def test_a_long_conversation_in_a_child(file: GGUF, tokenizer: Tokenizer, chatml: ChatTemplate) -> None:
    content = [text("Hello the " * 1000), image(IMAGE), text("and")]
    conversation = Conversation(messages=[{"role": "user", "content": content}])
    prompt = build_in_child(file, chatml, conversation, lambda: None, parse_special=False)
    assert prompt == build_prompt(chatml, tokenizer, conversation)
    assert long_prompts.is_long([image([-1] * long_prompts.MIN_SIZE)])


@pytest.mark.parametrize(("part", "problem"), [
    ({"type": "image", "ids": "abc"}, r"messages\[0\].content\[0\].ids: must be a list of token ids"),
    ({"type": "audio", "ids": [1.5]}, r"messages\[0\].content\[0\].ids: must be a list of token ids"),
    ({"type": "film"}, r"messages\[0\].content\[0\].type: must be text, image, audio or video, not film"),
])  # fmt: skip
def test_invalid_parts(part: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=f"^{problem}$"):
        Conversation(messages=[{"role": "user", "content": [part]}])
