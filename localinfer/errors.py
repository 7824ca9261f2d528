"""What can go wrong, and the exit code that each kind of trouble ends the program with.

An error's message is the rest of the one line `error: ...` that a user sees: it names the file or the option,
then the field or tensor, then what is wrong.
"""


class LocalInferError(Exception):
    """Bad data, or a failure while running."""

    exit_code = 1


class Incomplete(LocalInferError):
    """An answer that ended before it had the form that was asked for."""


class UsageError(LocalInferError):
    """An option or argument that cannot mean anything."""

    exit_code = 2


class ModelNotFound(LocalInferError):
    """Neither a file nor a known model's name."""

    exit_code = 3


class Unsupported(LocalInferError):
    """A model that is well formed, but that this program cannot run."""

    exit_code = 3


class NotEnoughMemory(LocalInferError):
    """The weights, the cache and the scratch do not fit."""

    exit_code = 4


class ContextOverflow(LocalInferError):
    """The context is full, and the policy is to stop."""

    exit_code = 5


class BadForm(LocalInferError):
    """A schema, grammar or pattern for the answer that is damaged, or asks for what is not supported."""

    exit_code = 6
