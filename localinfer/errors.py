"""Exceptions of localinfer, and the exit code with which the command line ends for each of them.

The message of an error is one line, which the command line prints behind `error: `. It names the file or the option,
then the field or the tensor, then what is wrong: `path: field: what is wrong`.
"""


class LocalInferError(Exception):
    """Base class of all errors; raised itself for damaged data and for failures at run time."""

    exit_code = 1


class IncompleteOutputError(LocalInferError):
    """The output ended before it satisfied its constraint (JSON schema, grammar, regular expression, ...)."""


class InvalidOutputError(LocalInferError):
    """The output is complete, but violates a keyword of its JSON schema that is checked only at the end."""

    exit_code = 6


class UsageError(LocalInferError):
    """An invalid option or argument."""

    exit_code = 2


class ModelNotFoundError(LocalInferError):
    """A model that is neither an existing file nor a known name, or that cannot be downloaded."""

    exit_code = 3


class UnsupportedError(LocalInferError):
    """A valid model or file that uses a feature that localinfer does not implement."""

    exit_code = 3


class UnsupportedInputError(UnsupportedError):
    """An image or a sound for a model that does not read it."""


class NotEnoughMemoryError(LocalInferError):
    """The weights, the KV cache and the scratch buffers do not fit into memory."""

    exit_code = 4


class ContextOverflowError(LocalInferError):
    """The context is full, and `--ctx-policy stop` forbids a context shift."""

    exit_code = 5


class PromptTooLongError(ContextOverflowError):
    """A prompt with more tokens than the context holds."""

    def __init__(self, n_prompt: int, n_ctx: int, hint: str) -> None:
        super().__init__(f"the prompt of {n_prompt} tokens exceeds the available context size of {n_ctx}; {hint}")
        self.n_prompt, self.n_ctx = n_prompt, n_ctx


class ConstraintError(LocalInferError):
    """An invalid JSON schema, grammar or regular expression, or one that uses an unsupported feature."""

    exit_code = 6
