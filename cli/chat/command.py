"""`localinfer chat`: the command line of a conversation."""

import contextlib
import sys
import threading
from importlib import import_module
from typing import Annotated

import typer

from cli import screen
from cli.flags import with_options
from cli.loading import default_model, open_model
from cli.texts import from_stdin
from localinfer.errors import UsageError
from localinfer.options import Layer


@with_options("model", "sampling", "generation", "chat")
def chat_command(
    given: Layer,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="A GGUF file or a name; none: the default.")
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Show answers as they come, not as Markdown; a pipe always does.")
    ] = False,
) -> None:
    """Talk with a model.

    When stdin is not a terminal, all of it is one message: the answer goes to stdout, and that is that.

    \b
      localinfer chat
      localinfer chat path/to/model.gguf -c 4096 --temp 0.7 -sys "You answer in one sentence."
      echo "Why is the sky blue?" | localinfer chat > answer.txt
    """
    name = model or default_model()
    message = None if sys.stdin.isatty() else from_stdin()
    if message is None and not sys.stdin.isatty():
        raise UsageError("nothing to answer: stdin is neither a terminal nor a pipe")
    if message is None and screen.is_live():
        threading.Thread(target=import_module, args=["cli.chat.editor"], daemon=True).start()  # as loading also waits
    with contextlib.ExitStack() as stack:
        with screen.without_echo() if message is None else contextlib.nullcontext():
            opened = stack.enter_context(open_model(name, given, screen.Status()))
            opened.require_chat_template()  # a model without one cannot chat: say so at once
        from cli.chat.loop import Chat

        chat = Chat(opened, name, plain=plain)
        if message is not None:
            chat.say(message)
        else:
            screen.aside(f"{name}: context {opened.n_ctx:,} tokens. /help shows what else you can type.")
            chat.talk()
