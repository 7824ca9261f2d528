"""A model's way to write prompts: its file's templates and its tokenizer, without the model itself.

    with PromptWriter(f, tokenizer) as writer:
        prompt = writer.write(Conversation(messages=[{"role": "user", "content": "Hello"}]), Options())
"""

import threading
import warnings
from dataclasses import replace
from types import TracebackType
from typing import Self

from localinfer.files.gguf import GGUF
from localinfer.options import Options
from localinfer.prompt.choice import Source, chosen
from localinfer.prompt.conversation import Conversation, check_template_kwargs, template_kwargs
from localinfer.prompt.prompt import Prompt, chat_prompt, text_of
from localinfer.prompt.template import ChatTemplate
from localinfer.prompt.thinking import looks_at, shows_tools, switches
from localinfer.prompt.written import Places
from localinfer.tokenizer import Tokenizer

TOKENS = {  # Hugging Face's names, and what tokenizer.ggml.*_token_id calls them
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}


class PromptWriter:
    """Keeps the process of the template that was used last, until another one is asked for. For several threads, which
    take turns."""

    def __init__(self, f: GGUF, tokenizer: Tokenizer) -> None:
        self._file = f
        self._tokenizer = tokenizer
        self._sources: dict[tuple[str, str, bool], Source] = {}
        self._current: tuple[Source, ChatTemplate] | None = None
        self._places = Places()
        self._turn = threading.RLock()

    def write(self, conversation: Conversation, options: Options, *, parse_special: bool = False) -> Prompt:
        """The prompt of a conversation, behind the options' system prompt unless it begins with one of its own.

        Raises what `template` and `chat_prompt` raise.
        """
        messages = conversation.messages
        if options.system_prompt and messages[0]["role"] not in ("system", "developer"):
            messages = [{"role": "system", "content": options.system_prompt}, *messages]
        template = self.template(options, with_tools=conversation.tools is not None)
        if conversation.tools and not shows_tools(template.source):
            warnings.warn(f"{template.name}: shows no tools: the model does not know that it has some", stacklevel=3)
        variables = {
            **switches(template.source, options.think),
            **({"reasoning_effort": options.reasoning_effort} if options.reasoning_effort else {}),
            **template_kwargs(options.chat_template_kwargs),
            **conversation.template_kwargs,
        }
        complete = replace(conversation, messages=messages, template_kwargs=variables)
        with self._turn:
            return chat_prompt(template, self._tokenizer, complete, parse_special=parse_special, places=self._places)

    def prepare(self, options: Options) -> None:
        """Before there is a conversation: what is wrong with the options, and the start of the template's process."""
        check_template_kwargs(template_kwargs(options.chat_template_kwargs))
        template = self.template(options)
        if options.think != "auto" and not switches(template.source, options.think):
            warnings.warn(f"--think {options.think}: the chat template has no switch for thoughts", stacklevel=3)
        if options.reasoning_effort and not looks_at(template.source, "reasoning_effort"):
            what = "the chat template does not ask how much to think"
            warnings.warn(f"--reasoning-effort {options.reasoning_effort}: {what}", stacklevel=3)

    def template(self, options: Options, *, with_tools: bool = False) -> ChatTemplate:
        """The template that such a conversation is written with, its process started.

        UsageError if the options name none that there is, Unsupported if the file has none.
        """
        choice = options.chat_template, options.chat_template_file, with_tools
        with self._turn:
            if choice not in self._sources:  # a file may be a pipe, which can be read once
                self._sources[choice] = chosen(self._file, options, with_tools=with_tools)
            source = self._sources[choice]
            if self._current is None or self._current[0] != source:
                self._current = source, ChatTemplate(source.text, self._special_tokens(), source.where)
            return self._current[1]

    def close(self) -> None:
        """Ends the template's process."""
        if self._current is not None:
            self._current[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def _special_tokens(self) -> dict[str, str]:
        """By the names of their variables; BOS and EOS are empty where there are none: few templates ask."""
        ids = {name: self._file.get(f"tokenizer.ggml.{key}_token_id", int, None) for name, key in TOKENS.items()}
        ids |= {"bos_token": self._tokenizer.bos, "eos_token": self._tokenizer.eos}
        known = {name: id for name, id in ids.items() if id is not None and id < self._tokenizer.n_vocab}
        texts = {name: text_of(self._tokenizer, id) for name, id in known.items()}
        return {"bos_token": "", "eos_token": ""} | texts
