"""Files with the KV cache of a model's sequence."""

import warnings
from pathlib import Path

from localinfer.errors import LocalInferError, UsageError
from localinfer.model.base import ModelBase


class CacheFiles(ModelBase):
    """Save the KV cache of the current sequence to a file, and load it."""

    def save_cache(self, path: str | Path) -> None:
        """Write the KV cache of the current sequence to a file that only its owner can read, for `load_cache`.

        The file is replaced atomically. Raises LocalInferError if it cannot be written, UsageError while hooks are
        set, UnsupportedError for models that cache nothing: encoders and diffusion language models.
        """
        from localinfer.runtime import snapshot

        if self.engine.sequence.modifiers.hooks:
            raise UsageError("save_cache: hooks are set, so the cache is not that of the model alone")
        self.engine.compiled_graph.require_next_tokens()
        snapshot.save(Path(path), self.engine, self.options)

    def load_cache(self, path: str | Path) -> int:
        """Load a KV cache that `save_cache` has written, and return its number of tokens.

        A prompt that begins with these tokens reuses the cache. A file that is damaged, or belongs to another model or
        other options, is ignored with a warning, and the result is 0. Raises UsageError for a file of another kind, and
        while hooks are set.
        """
        from localinfer.runtime import snapshot

        if self.engine.sequence.modifiers.hooks:
            raise UsageError("load_cache: hooks are set, which have not seen the tokens of a file")
        self._session.end()
        try:
            return snapshot.load(Path(path), self.engine, self.options)
        except UsageError:  # not a snapshot: the next save would overwrite a file of another program
            raise
        except LocalInferError as error:
            self.engine.runner.require_open()
            warnings.warn(f"{error}; the file is ignored", stacklevel=2)
            return 0
