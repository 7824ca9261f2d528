"""Prompts of a model file: combines its chat templates and its tokenizer, without loading the model.

with PromptBuilder(f, tokenizer) as builder:
    prompt = builder.build(Conversation(messages=[{"role": "user", "content": "Hello"}]), Options())
"""

import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Self

from localinfer.chat_template.conversation import Conversation, check_template_kwargs, parse_template_kwargs
from localinfer.chat_template.long_prompts import build_in_child, can_run_in_child, is_long
from localinfer.chat_template.prompt import Prompt, build_prompt, special_token_text
from localinfer.chat_template.template import ChatTemplate
from localinfer.chat_template.template_selection import TemplateSource, select_template
from localinfer.chat_template.template_variables import (
    EFFORT,
    date_variables,
    references,
    supports_developer_role,
    supports_tools,
    thinking_variables,
)
from localinfer.chat_template.tool_call_tokens import MessageSpans
from localinfer.gguf.reader import GGUF
from localinfer.options import Options
from localinfer.tokenizer import Tokenizer

SPECIAL_TOKENS = {  # Hugging Face's variable -> name in the key tokenizer.ggml.*_token_id
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}
SYSTEM = {"role": "system"}


class PromptBuilder:
    """Builds prompts. Keeps the process of the latest template alive. May be used from several threads."""

    def __init__(self, f: GGUF, tokenizer: Tokenizer) -> None:
        self._file = f
        self._tokenizer = tokenizer
        self._sources: dict[tuple[str, str, bool], TemplateSource] = {}
        self._current: tuple[TemplateSource, ChatTemplate] | None = None
        self._spans = MessageSpans()
        self._lock = threading.RLock()

    def build(
        self, conversation: Conversation, options: Options, *, parse_special: bool = False,
        on_wait: Callable[[], None] = lambda: None,
    ) -> Prompt:  # fmt: skip
        """Return the prompt of a conversation, with the options' system prompt unless the conversation has one.

        While a child process builds a long prompt, `on_wait` is called several times a second; it may raise.

        Raises the errors of `template` and `build_prompt`.
        """
        messages = conversation.messages
        if options.system_prompt and messages[0]["role"] not in ("system", "developer"):
            messages = [{"role": "system", "content": options.system_prompt}, *messages]
        template = self.template(options, with_tools=conversation.tools is not None)
        if not supports_developer_role(template.source):
            messages = [each | SYSTEM if each["role"] == "developer" else each for each in map(dict, messages)]
        if conversation.tools and not supports_tools(template.source):
            warnings.warn(f"{template.name}: does not support tools: the model cannot see them", stacklevel=3)
        variables = {
            **date_variables(template.source, datetime.now()),
            **thinking_variables(template.source, options.think),
            **({EFFORT: options.reasoning_effort} if options.reasoning_effort else {}),
            **parse_template_kwargs(options.chat_template_kwargs),
            **conversation.template_kwargs,
        }
        if variables.get(EFFORT) == "none":  # OpenAI's value for no reasoning
            variables |= thinking_variables(template.source, "off")
        complete = replace(conversation, messages=messages, template_kwargs=variables)
        is_in_child = is_long([messages, conversation.tools, conversation.documents, variables])
        if is_in_child and can_run_in_child(self._file):
            prompt = build_in_child(self._file, template, complete, on_wait, parse_special=parse_special)
            if prompt is not None:
                return prompt
        with self._lock:
            return build_prompt(template, self._tokenizer, complete, parse_special=parse_special, spans=self._spans)

    def prepare(self, options: Options) -> None:
        """Check the options that concern the template, and start its process, before there is a conversation."""
        check_template_kwargs(parse_template_kwargs(options.chat_template_kwargs))
        template = self.template(options)
        if options.think != "auto" and not thinking_variables(template.source, options.think):
            warnings.warn(f"think {options.think}: the chat template has no switch for reasoning", stacklevel=3)
        if options.reasoning_effort and not references(template.source, EFFORT):
            problem = "the chat template does not use it"
            warnings.warn(f"reasoning_effort {options.reasoning_effort}: {problem}", stacklevel=3)

    def template(self, options: Options, *, with_tools: bool = False) -> ChatTemplate:
        """Return the template for these options, with its process started.

        Raises UsageError if the options name an unknown template, UnsupportedError if the file has none.
        """
        key = options.chat_template, options.chat_template_file, with_tools
        with self._lock:
            if key not in self._sources:  # the file may be a pipe, which can be read only once
                self._sources[key] = select_template(self._file, options, with_tools=with_tools)
            source = self._sources[key]
            if self._current is None or self._current[0] != source:
                self._current = source, ChatTemplate(source.text, self._special_tokens(), source.location)
            return self._current[1]

    def close(self) -> None:
        """Stop the template's process."""
        if self._current is not None:
            self._current[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _special_tokens(self) -> dict[str, str]:
        """Return the texts of the special tokens by template variable; BOS and EOS are "" if the model has none."""
        keys = {name: f"tokenizer.ggml.{key}_token_id" for name, key in SPECIAL_TOKENS.items()}
        ids = {name: self._file.get(key, int, None) for name, key in keys.items()}
        ids |= {"bos_token": self._tokenizer.bos, "eos_token": self._tokenizer.eos}
        known = {name: id for name, id in ids.items() if id is not None and id < self._tokenizer.n_vocab}
        texts = {name: special_token_text(self._tokenizer, id) for name, id in known.items()}
        return {"bos_token": "", "eos_token": ""} | texts
