"""The rows of the images and sounds of a prompt, from their encoding to the end of its run."""

from collections.abc import Callable

from localinfer.errors import UsageError
from localinfer.runtime.media.media_embeddings import MediaEmbeddings
from localinfer.runtime.media.media_table import MediaTable


class PromptMedia:
    """What an engine holds of its next prompt, so that the table does not drop these rows meanwhile. One thread at a
    time uses it."""

    def __init__(self, table: MediaTable | None) -> None:
        self._table, self._held = table, list[MediaEmbeddings]()

    def begin(self) -> Callable[[MediaEmbeddings], list[int]]:
        """Return a function for all images and sounds of a prompt. The rows of the prompt before are not held any more.

        It returns token ids for the rows of an image or a sound: negative, and the same for equal digests. They can be
        used wherever a sequence takes token ids, all of them one after another, until the model is closed. Rows that
        nothing holds may be dropped if there are too many; evaluating their ids then raises LocalInferError until they
        are given again. The function raises UsageError if the model was not loaded for media, or the rows do not fit
        it.
        """
        self._held = held = list[MediaEmbeddings]()

        def media_ids(embeddings: MediaEmbeddings) -> list[int]:
            if self._table is None:
                raise UsageError("media: the model was loaded without a projector for images and sounds")
            ids, embeddings = self._table.hold(embeddings)
            held.append(embeddings)
            return ids

        return media_ids

    def take(self) -> list[MediaEmbeddings]:
        """Return what is held, for a caller that refers to it while it evaluates the prompt."""
        taken, self._held = self._held, []
        return taken
