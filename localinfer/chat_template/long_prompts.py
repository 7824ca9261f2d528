"""Long prompts: a child process renders and tokenizes them, so that this can be stopped at any time.

Both take seconds for texts of megabytes, in native code that cannot be interrupted and that keeps other threads of this
process from running. Short prompts are not worth a process, whose start takes about half a second. The result is the
same. `prompt_worker.py` runs in the child.
"""

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

from localinfer import errors
from localinfer.chat_template.conversation import Conversation
from localinfer.chat_template.prompt import Prompt
from localinfer.chat_template.template import ChatTemplate
from localinfer.child_process import Child, read_frame, start_child, terminate, write_frame
from localinfer.errors import LocalInferError
from localinfer.gguf.reader import GGUF

MIN_SIZE = 1 << 18  # characters of a long text
VALUE_SIZE = 16  # characters that count for each value of a conversation, in addition to its text
POLL_SECONDS = 0.05  # how often the waiting thread looks for reasons to stop
MESSAGES_PER_WAIT = 1000
CODE = "from localinfer.chat_template.prompt_worker import main; main()"
PACKAGES = ("localinfer", "quant", "numpy", "numba", "llvmlite", "tokenizers", "sentencepiece", "jinja2", "markupsafe")

OnWait = Callable[[], None]


def is_long(value: object) -> bool:
    """Return whether the texts of a nested value are long. Stops counting when they are."""
    size, pending = 0, [value]
    while pending and size < MIN_SIZE:
        each = pending.pop()
        size += VALUE_SIZE
        if isinstance(each, str):
            size += len(each)
        elif isinstance(each, Mapping):
            pending += [*each, *each.values()]
        elif isinstance(each, (list, tuple)):
            size += len(each)  # of token ids
            pending += [item for item in each if not isinstance(item, int)]
    return size >= MIN_SIZE


def encode_in_child(f: GGUF, text: str, on_wait: OnWait, **keywords: bool) -> list[int]:
    """Return what `Tokenizer.encode` returns. `on_wait` is called several times a second; it may raise."""
    frames = [b"encode", json.dumps(keywords).encode(), text.encode("utf-8", "surrogatepass")]
    return array_of(run(f, frames, on_wait)[0])


def build_in_child(
    f: GGUF, template: ChatTemplate, conversation: Conversation, on_wait: OnWait, *, parse_special: bool
) -> Prompt | None:
    """Return what `build_prompt` returns, or None if JSON cannot express the conversation.

    `on_wait` is called several times a second; it may raise.
    """
    others = {each.name: getattr(conversation, each.name) for each in fields(conversation) if each.name != "messages"}
    head = [template.source, template.tokens, template.name, parse_special, others]
    frames = []
    try:
        # Message by message: the encoder keeps other threads from running until it is done.
        for number, each in enumerate((head, *conversation.messages)):
            frames.append(json.dumps(each).encode())
            if number % MESSAGES_PER_WAIT == 0:
                on_wait()
    except (TypeError, ValueError, RecursionError):
        return None
    ids, text = run(f, [b"build", *frames], on_wait)
    return Prompt(text.decode("utf-8", "surrogatepass"), array_of(ids))


def can_run_in_child(f: GGUF) -> bool:
    """Return whether the child can open the model."""
    return f.path.is_file()  # not so for a model in memory


def run(f: GGUF, frames: Sequence[bytes], on_wait: OnWait) -> list[bytes]:
    """Return the reply of a child process to a request, or raise its error. The child is ended in any case."""
    from concurrent.futures import ThreadPoolExecutor, wait  # long prompts are rare

    try:
        child = start_child(CODE, PACKAGES)
    except OSError as error:
        raise LocalInferError(f"cannot start a process for a long prompt: {error.strerror}") from None
    try:
        with ThreadPoolExecutor(1, "long-prompt") as thread:
            model = str(f.path.resolve()).encode("utf-8", "surrogateescape"), json.dumps(dict(f.overrides)).encode()
            future = thread.submit(exchange, child, [*model, *frames])
            try:
                while not future.done():
                    wait([future], POLL_SECONDS)
                    on_wait()
                name, *contents = future.result()
            finally:
                child.kill()  # ends the thread's read, too
    except (EOFError, OSError):
        raise LocalInferError("the process for a long prompt ended unexpectedly") from None
    finally:
        terminate(child)
    if name:
        raise getattr(errors, name.decode())(contents[0].decode("utf-8", "replace"))
    return contents


def exchange(child: Child, frames: Sequence[bytes]) -> list[bytes]:
    """Send a request, and return the frames of the reply."""
    assert child.stdin is not None
    assert child.stdout is not None
    write_frame(child.stdin, len(frames).to_bytes(4, "little"))
    for frame in frames:
        write_frame(child.stdin, frame)
    count = int.from_bytes(read_frame(child.stdout), "little")
    return [read_frame(child.stdout) for _ in range(count)]


def array_of(content: bytes) -> list[int]:
    return array("i", content).tolist()
