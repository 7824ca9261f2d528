"""The last exchanges of a resumed session, shown as they looked when they took place."""

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cli.chat.conversation import is_tool_call
from cli.chat.display.answer import View
from cli.chat.input.message_input import CONTINUATION, PROMPT
from cli.chat.tool_calls.tools import format_call, format_result
from cli.terminal import screen
from localinfer.escaping import terminal_text
from localinfer.generation.pieces import Piece
from localinfer.session_media import content_text

Message = Mapping[str, Any]

MAX_TURNS = 3
MAX_SCREENS = 2  # of text; the last turn is shown even if it is longer
MAX_QUESTION_LINES = 12  # of a message, which may contain files; its beginning and its end are shown


def last_turns(messages: Sequence[Message], columns: int, rows: int) -> list[Message]:
    """Return the last few turns: as many as fit on MAX_SCREENS screens, and at least one."""
    starts = [at for at, message in enumerate(messages) if message["role"] == "user"]
    n_lines, shown = 0, len(messages)
    for start in reversed(starts[-MAX_TURNS:]):
        n_lines += sum(count_lines(text_of(message), columns) for message in messages[start:shown])
        if shown < len(messages) and n_lines > MAX_SCREENS * rows:
            break
        shown = start
    return list(messages[shown:])


def show_last_turns(messages: Sequence[Message], create_view: Callable[[], View]) -> None:
    """Show the last turns on the terminal, and how many messages precede them."""
    shown = last_turns(messages, *shutil.get_terminal_size())
    if len(shown) < len(messages):
        screen.note_dim(f"... {len(messages) - len(shown)} earlier messages, which /export writes to a file")
    for message in shown:
        if message["role"] == "user":
            write_question(text_of(message))
        elif message["role"] == "tool":
            screen.note_dim(format_result(text_of(message)))
        elif message["role"] == "assistant":
            show_answer(message, create_view)


def show_answer(message: Message, create_view: Callable[[], View]) -> None:
    reasoning, text, calls = message.get("reasoning_content"), text_of(message), message.get("tool_calls")
    if isinstance(reasoning, str) and reasoning.strip():
        screen.note_dim(f"thought, {len(reasoning.split()):,} words")
    if text.strip():
        view = create_view()
        view.add(Piece(text, -1))
        view.end()
    for call in calls if isinstance(calls, list) else []:
        if is_tool_call(call):
            screen.note_dim(format_call(call))


def write_question(text: str) -> None:
    """Write a question with the prompt before it, as the line editor shows it."""
    lines = text.split("\n")
    if len(lines) > MAX_QUESTION_LINES:
        half = MAX_QUESTION_LINES // 2
        lines = [*lines[:half], f"... ({len(lines) - 2 * half:,} lines)", *lines[-half:]]
    bold, cyan, end = ("\x1b[1m", "\x1b[1;36m", "\x1b[0m") if screen.has_color() else ("", "", "")
    for number, line in enumerate(lines):
        before = CONTINUATION if number else PROMPT
        sys.stdout.write(f"{cyan}{before}{end}{bold}{terminal_text(line)}{end}\n")
    sys.stdout.flush()


def text_of(message: Message) -> str:
    return content_text(message["content"])


def count_lines(text: str, columns: int) -> int:
    return sum(1 + len(line) // columns for line in text.split("\n"))
