"""What the chat tells when the context is full: before an answer, after one that is cut off, and with an error."""

from collections.abc import Sequence

from cli.chat.conversation import Conversation
from cli.chat.prompt_window import Message
from cli.chat.slash_commands.session_commands import beginning
from cli.terminal import screen
from localinfer import Model
from localinfer.session_media import content_text

LARGER_CONTEXT = "/set ctx_size N makes it larger"
SHOWN_DROPPED = 3  # questions


def note_dropped(n_ctx: int, messages: Sequence[Message]) -> None:
    """Tell, before the answer, which messages are left out of the prompt from now on."""
    questions = [message for message in messages if message["role"] == "user"]
    screen.note_dim(
        f"The context of {n_ctx:,} tokens is full: {len(messages)} messages are left out of the prompt "
        f"from here on; {LARGER_CONTEXT}."
    )
    for message in questions[:SHOWN_DROPPED]:
        screen.note_dim(f"  left out: {beginning(content_text(message['content']))}")
    if len(questions) > SHOWN_DROPPED:
        screen.note_dim(f"  and {len(questions) - SHOWN_DROPPED} more questions, with their answers")


def context_full_note(model: Model, conversation: Conversation) -> str:
    """Return what to tell about an answer that was cut off because the context is full."""
    hint = overflow_hint(model) if model.options.ctx_policy == "stop" else LARGER_CONTEXT
    if dropped := conversation.window.next_dropped(conversation.messages):
        which = "all" if len(dropped) == len(conversation.messages) else f"the oldest {len(dropped)}"
        hint = f"The next question leaves out {which} messages so far; {LARGER_CONTEXT}"
    return f"The context of {model.n_ctx:,} tokens is full; the answer is cut off. {hint}."


def overflow_hint(model: Model) -> str:
    """Return what the user can do about a message that is too long."""
    if model.options.ctx_policy == "stop":
        return f"/undo removes the last message, /clear starts over, {LARGER_CONTEXT}"
    return f"Shorten the message, or {LARGER_CONTEXT}"
