"""The command `localinfer template`: render a chat template. It does not read the weights."""

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.flags import ModelArgument, with_options
from cli.files.text_input import read_json
from cli.files.tool_definitions import read_schemas
from cli.models.loading import find_or_fetch
from cli.terminal import screen
from localinfer.options import Layer, from_environment, merge

if TYPE_CHECKING:
    from localinfer.chat_template.conversation import Conversation

EXAMPLE_MESSAGES = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi there"},
    {"role": "user", "content": "How are you?"},
]


@dataclass(frozen=True, kw_only=True)
class ConversationFiles:
    """The conversation to render, and how the prompt ends."""

    messages: Annotated[
        str | None, typer.Option("--messages", metavar="FILE", help="JSON file with the messages; - is stdin.")
    ] = None
    tools: Annotated[
        str | None, typer.Option("--tools", metavar="FILE", help="JSON file with tool definitions.")
    ] = None
    documents: Annotated[
        str | None,
        typer.Option("--documents", metavar="FILE", help="JSON file with documents, each with title and text."),
    ] = None
    no_generation_prompt: Annotated[
        bool, typer.Option("--no-generation-prompt", help="Do not append the start of an assistant message.")
    ] = False
    continue_final_message: Annotated[
        bool,
        typer.Option("--continue-final-message", help="Leave the last message open, so that the model continues it."),
    ] = False

    def read(self) -> "Conversation":
        """Return the conversation in the files; without a file of messages, an example."""
        from localinfer.chat_template.conversation import Conversation

        return Conversation(
            messages=EXAMPLE_MESSAGES if self.messages is None else read_json(self.messages),
            tools=None if self.tools is None else read_schemas(self.tools),
            documents=None if self.documents is None else read_json(self.documents),
            add_generation_prompt=not self.no_generation_prompt,
            continue_final_message=self.continue_final_message,
        )


@with_options("chat")
def template_command(
    model: ModelArgument,
    given: Layer,
    files: ConversationFiles,
    ids: Annotated[bool, typer.Option("--ids", help="Print only the token ids, as one list.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: text and ids.")] = False,
) -> None:
    """Render the chat template of a model.

    The messages are a JSON list, such as [{"role": "user", "content": "Hello"}]. Without --messages, a short example is
    rendered. Only the prompt is written to stdout. Messages cannot contain control tokens: if the text of one occurs in
    a message, it is tokenized as text; --ids shows the difference.

    \b
    Examples:
      localinfer template smollm2
      localinfer template model.gguf --messages chat.json --tools tools.json
      localinfer template model.gguf --chat-template-kwargs '{"enable_thinking": false}' --ids
      echo '[{"role": "user", "content": "Hello"}]' | localinfer template smollm2 --messages -
      localinfer template gemma3-270m --chat-template gemma -sys "Be brief."
    """
    conversation = files.read()
    path = find_or_fetch(model, screen.Status())

    from localinfer.chat_template.prompt_builder import PromptBuilder
    from localinfer.gguf.reader import open_gguf
    from localinfer.hub import resolve
    from localinfer.tokenizer import from_gguf

    options = merge(given, from_environment(os.environ), resolve.default_options(model))
    f = open_gguf(path)
    with PromptBuilder(f, from_gguf(f)) as builder:
        prompt = builder.build(conversation, options)
    if as_json:
        screen.write(json.dumps({"text": prompt.text, "ids": prompt.ids}) + "\n")
    elif ids:
        screen.write(json.dumps(prompt.ids) + "\n")
    else:
        screen.write(prompt.text + ("\n" if sys.stdout.isatty() and not prompt.text.endswith("\n") else ""))
