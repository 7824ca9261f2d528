"""`localinfer template`: what a model is shown of a conversation. The weights are not read."""

import json
import os
import sys
from typing import Annotated

import typer

from cli import screen
from cli.flags import ModelArgument, with_options
from cli.loading import fetched
from cli.texts import from_json
from localinfer.options import Layer, from_environment, merge

SMALL_TALK = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi there"},
    {"role": "user", "content": "How are you?"},
]


@with_options("chat")
def template_command(
    model: ModelArgument,
    given: Layer,
    messages: Annotated[
        str | None, typer.Option("--messages", metavar="FILE", help="The conversation in JSON; - is stdin.")
    ] = None,
    tools: Annotated[
        str | None, typer.Option("--tools", metavar="FILE", help="JSON schemas of functions that the model may call.")
    ] = None,
    documents: Annotated[
        str | None, typer.Option("--documents", metavar="FILE", help="Documents in JSON, each with title and text.")
    ] = None,
    no_generation_prompt: Annotated[
        bool, typer.Option("--no-generation-prompt", help="End with the last message, and do not ask for an answer.")
    ] = False,
    continue_final_message: Annotated[
        bool, typer.Option("--continue-final-message", help="End in the midst of the last message, for more of it.")
    ] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Print the numbers of the tokens only, as one list.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: text and ids.")] = False,
) -> None:
    """Show what a model sees of a conversation.

    That is what its chat template makes of a list of messages in JSON, such as [{"role": "user", "content": "Hello"}];
    without --messages, of a small one. Exactly that text goes to stdout. A message can spell a control token, but
    never becomes one: --ids shows the difference.

    \b
      localinfer template smollm2
      localinfer template model.gguf --messages talk.json --tools tools.json
      localinfer template model.gguf --chat-template-kwargs '{"enable_thinking": false}' --ids
      echo '[{"role": "user", "content": "Hello"}]' | localinfer template smollm2 --messages -
      localinfer template gemma3-270m --chat-template gemma -sys "Be brief."
    """
    conversation_in_json = SMALL_TALK if messages is None else from_json(messages)
    path = fetched(model, screen.Status())

    from localinfer.files.gguf import open_gguf
    from localinfer.models import registry
    from localinfer.prompt.conversation import Conversation
    from localinfer.prompt.writer import PromptWriter
    from localinfer.tokenizer import from_gguf

    conversation = Conversation(
        messages=conversation_in_json,
        tools=None if tools is None else from_json(tools),
        documents=None if documents is None else from_json(documents),
        add_generation_prompt=not no_generation_prompt,
        continue_final_message=continue_final_message,
    )
    options = merge(given, from_environment(os.environ), registry.default_options(model))
    f = open_gguf(path)
    with PromptWriter(f, from_gguf(f)) as writer:
        prompt = writer.write(conversation, options)
    if as_json:
        screen.write(json.dumps({"text": prompt.text, "ids": prompt.ids}) + "\n")
    elif ids:
        screen.write(json.dumps(prompt.ids) + "\n")
    else:
        screen.write(prompt.text + ("\n" if sys.stdout.isatty() and not prompt.text.endswith("\n") else ""))
