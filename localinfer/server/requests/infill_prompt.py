"""Prompts for the code between a prefix and a suffix, with the fill-in-the-middle tokens of the model's vocabulary.

The prompt of a model with tokens for repositories and files begins with the files of the request:

    [rep]myproject            [sep]name of a file
                              its text ...
    [sep]filename
    [pre]input_prefix prompt[suf]input_suffix[mid]

Without them, snippets are separated by a line. As in llama.cpp, prefix and suffix are shortened to a batch, three to
one, and the extra files fill the rest of the context.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from localinfer.errors import UnsupportedError
from localinfer.server.requests.mixed_prompts import MixedPrompt
from localinfer.server.slots import stop_prompt_if_cancelled

if TYPE_CHECKING:
    from localinfer.generation.result import GenerationStream
    from localinfer.model import Model

PROJECT, FILE = "myproject\n", "filename\n"  # llama.cpp has no names, either
SNIPPET = "\n\n--- snippet ---\n\n"
REQUIRED_TOKENS = ("pre", "suf", "mid")


@dataclass(frozen=True, slots=True)
class InfillPrompt:
    """What is known of a file with a gap. Twice `n_predict` tokens of the context stay free, or a quarter of it."""

    prefix: MixedPrompt
    suffix: MixedPrompt
    continued: MixedPrompt | None = None  # the beginning of the middle
    extra: Sequence[tuple[str, str]] = ()  # name and text of further files
    n_predict: int = 0
    suffix_first: bool = False
    field_of: Mapping[str, str] = field(default_factory=dict)  # see `dispatcher.Prompt`

    def ids(self, model: "Model") -> list[int]:
        """Return the token ids. Raises UnsupportedError if the vocabulary has no fill-in-the-middle tokens."""
        fim, n_batch = require_fim_tokens(model), min(model.options.batch_size, model.n_ctx // 2)
        middle = plain_ids(self.continued, model) if self.continued else []
        prefix, suffix = plain_ids(self.prefix, model), plain_ids(self.suffix, model)
        prefix = prefix[max(0, len(prefix) - 3 * (n_batch // 4)) :]
        suffix = suffix[: max(0, n_batch // 4 - 2 - len(middle))]
        before, after = [fim["pre"], *prefix, *middle], [fim["suf"], *suffix]
        parts = [after, before] if self.suffix_first else [before, after]
        bos = [model.tokenizer.bos] if model.tokenizer.add_bos and model.tokenizer.bos is not None else []
        file = [*bos, *parts[0], *parts[1], fim["mid"]]
        extra = self._extra_ids(model)
        reserve = 2 * self.n_predict or model.n_ctx // 4
        n_extra = max(0, min(len(extra), model.n_ctx - len(file) - reserve))
        return [*extra[len(extra) - n_extra :], *file]

    def begin(self, model: "Model", options: Mapping[str, Any]) -> "GenerationStream":
        """Start the generation: see `dispatcher.Prompt`."""
        return model.stream(self.ids(model), **options)

    def _extra_ids(self, model: "Model") -> list[int]:
        fim = model.tokenizer.fim
        ids = [fim["rep"], *text_ids(PROJECT, model)] if "rep" in fim else []
        for name, text in self.extra:
            heading = [fim["sep"], *text_ids(f"{name}\n", model)] if "sep" in fim else text_ids(SNIPPET, model)
            ids += [*heading, *text_ids(text, model)]
        return [*ids, fim["sep"], *text_ids(FILE, model)] if "sep" in fim else ids


def plain_ids(prompt: MixedPrompt, model: "Model") -> list[int]:
    return prompt.ids(model, add_special=False, parse_special=False)


def text_ids(text: str, model: "Model") -> list[int]:
    return model.tokenize(text, add_special=False, on_wait=stop_prompt_if_cancelled)


def require_fim_tokens(model: "Model") -> Mapping[str, int]:
    """Return the fill-in-the-middle tokens by role. Raises UnsupportedError if one is missing."""
    missing = [role for role in REQUIRED_TOKENS if role not in model.tokenizer.fim]
    if missing:
        raise UnsupportedError(f"infill: this model has no tokens to fill in the middle ({', '.join(missing)})")
    return model.tokenizer.fim


