"""The command `localinfer template`: render a chat template. It does not read the weights."""

import json
import os
import sys
from typing import Annotated

import typer

from cli import screen
from cli.flags import ModelArgument, with_options
from cli.loading import find_or_fetch
from cli.text_input import read_json
from localinfer.options import Layer, from_environment, merge

EXAMPLE_MESSAGES = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi there"},
    {"role": "user", "content": "How are you?"},
]


@with_options("chat")
def template_command(
    model: ModelArgument,
    given: Layer,
    messages: Annotated[
        str | None, typer.Option("--messages", metavar="FILE", help="JSON file with the messages; - is stdin.")
    ] = None,
    tools: Annotated[
        str | None, typer.Option("--tools", metavar="FILE", help="JSON file with tool definitions.")
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option("--documents", metavar="FILE", help="JSON file with documents, each with title and text."),
    ] = None,
    no_generation_prompt: Annotated[
        bool, typer.Option("--no-generation-prompt", help="Do not append the start of an assistant message.")
    ] = False,
    continue_final_message: Annotated[
        bool,
        typer.Option("--continue-final-message", help="Leave the last message open, so that the model continues it."),
    ] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Print only the token ids, as one list.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: text and ids.")] = False,
) -> None:
    """Render the chat template of a model.

    The input is a JSON list of messages, such as [{"role": "user", "content": "Hello"}]; without --messages, a short
    example. stdout gets exactly the rendered prompt. Text of a control token inside a message is not parsed as that
    token; --ids shows the difference.

    \b
      localinfer template smollm2
      localinfer template model.gguf --messages talk.json --tools tools.json
      localinfer template model.gguf --chat-template-kwargs '{"enable_thinking": false}' --ids
      echo '[{"role": "user", "content": "Hello"}]' | localinfer template smollm2 --messages -
      localinfer template gemma3-270m --chat-template gemma -sys "Be brief."
    """
    conversation_in_json = EXAMPLE_MESSAGES if messages is None else read_json(messages)
    path = find_or_fetch(model, screen.Status())

    from localinfer.chat_template.conversation import Conversation
    from localinfer.chat_template.prompt_builder import PromptBuilder
    from localinfer.gguf.reader import open_gguf
    from localinfer.hub import resolve
    from localinfer.tokenizer import from_gguf

    conversation = Conversation(
        messages=conversation_in_json,
        tools=None if tools is None else read_json(tools),
        documents=None if documents is None else read_json(documents),
        add_generation_prompt=not no_generation_prompt,
        continue_final_message=continue_final_message,
    )
    options = merge(given, from_environment(os.environ), resolve.default_options(model))
    f = open_gguf(path)
    with PromptBuilder(f, from_gguf(f)) as writer:
        prompt = writer.build(conversation, options)
    if as_json:
        screen.write(json.dumps({"text": prompt.text, "ids": prompt.ids}) + "\n")
    elif ids:
        screen.write(json.dumps(prompt.ids) + "\n")
    else:
        screen.write(prompt.text + ("\n" if sys.stdout.isatty() and not prompt.text.endswith("\n") else ""))
