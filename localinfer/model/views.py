"""Views of what a model computes for a text: logit lens, attention maps, probabilities of the tokens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from localinfer.errors import UsageError
from localinfer.model.embeddings import Embeddings
from localinfer.model.hooked_model import HookedModel
from localinfer.model.tokenization import Tokenization
from localinfer.runtime.encoder_tokens import require_texts

if TYPE_CHECKING:  # most programs use no views
    from localinfer.evaluation.views.attention_maps import AttentionMaps
    from localinfer.evaluation.views.logit_lens import LogitLens
    from localinfer.evaluation.views.token_probabilities import TokenProbabilities


class Views(HookedModel, Embeddings, Tokenization):
    """Look at how a model evaluates a text. Notebooks and `rich.print` show the results as tables.

    Each method evaluates a text, or token ids, from its beginning and ends the current run. The effects of patches are
    included.
    """

    def lens(self, prompt: "str | Sequence[int]", *, top: int = 5) -> "LogitLens":
        """Return the logit lens of a text or of token ids: the `top` most probable next tokens that the output layer
        predicts from the residual stream before the first layer and after each.

        Raises UsageError if the model has several residual streams, UnsupportedError for an encoder, an encoder-decoder
        model and a diffusion language model.
        """
        from localinfer.evaluation.views.logit_lens import PATTERNS, logit_lens

        require_top(top)
        require_texts(self.engine.compiled_graph.model_graph)
        ids = self._text_ids(prompt)
        with self.capture(*PATTERNS) as trace:
            self._session.evaluate(ids)
        return logit_lens(self.engine.runner, trace, self._token_texts(ids), top, self.tokenizer.token_text)

    def attention(self, prompt: "str | Sequence[int]", *, layers: Sequence[int] | None = None) -> "AttentionMaps":
        """Return the attention weights of a text or of token ids, in all layers, or in some: for each head, how much
        each token attends to each other one.

        They take 4 * heads * tokens^2 bytes for each layer. Raises UsageError for a layer without attention,
        UnsupportedError for an encoder-decoder model.
        """
        from localinfer.evaluation.views.attention_maps import attention_maps
        from localinfer.graph.properties.model_properties import ENCODER

        require_texts(self.engine.compiled_graph.model_graph)
        ids = self._text_ids(prompt)
        model_graph = self.engine.compiled_graph.model_graph
        group = ENCODER if any(name.startswith(ENCODER) for name in model_graph.attention.layers) else "blk"
        numbers = ["*"] if layers is None else layers
        with self.capture(*(f"{group}.{number}.attn_weights" for number in numbers)) as trace:
            if not model_graph.context.causal:
                self.embed_tokens([ids])
            else:
                self._session.evaluate(ids)
        return attention_maps(trace, self._token_texts(ids))

    def token_probabilities(self, prompt: "str | Sequence[int]", *, top: int = 5) -> "TokenProbabilities":
        """Return the probability and the rank of each token of a text or of token ids after those before it, and the
        `top` most probable ones in its place.

        Raises UsageError for fewer than two tokens, UnsupportedError for an encoder and a diffusion language model.
        """
        from localinfer.evaluation.views.token_probabilities import token_probabilities

        require_top(top)
        ids = self._text_ids(prompt)
        if len(ids) < 2:
            raise UsageError("prompt: at least two tokens are required: the first one has no probability")
        self.engine.compiled_graph.require_next_tokens()
        batches = self._session.logits_in_batches(ids[:-1])
        return token_probabilities(batches, ids, self._token_texts(ids), top, self.tokenizer.token_text)

    def _text_ids(self, prompt: "str | Sequence[int]") -> list[int]:
        return list(self.tokenize(prompt) if isinstance(prompt, str) else self._check_ids(prompt))

    def _token_texts(self, ids: Sequence[int]) -> list[str]:
        return [self.tokenizer.token_text(id) for id in ids]


def require_top(top: int) -> None:
    """Raise UsageError unless at least one prediction is asked for."""
    if top < 1:
        raise UsageError(f"top: must be at least 1, not {top}")
