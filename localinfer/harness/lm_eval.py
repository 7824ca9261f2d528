"""Models for lm-evaluation-harness: its command line, with `--model localinfer`.

    python -m localinfer.harness.lm_eval --model localinfer --model_args pretrained=smollm2 --tasks hellaswag

`pretrained` is the path of a GGUF file or a model name; the other arguments are those of `localinfer.load`, such as
`ctx_size=4096`. In Python, importing this module registers the model. Needs the extra `localinfer[lm-eval]`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from localinfer.errors import UsageError
from localinfer.evaluation.loglikelihood import MIN_SEQUENCES, ScoredText, score_groups
from localinfer.harness.generation import Prompt, generate_outputs
from localinfer.model import load
from localinfer.options.keywords import RunKeywords

DEFAULTS = {"parallel": 16, "ctx_size": 2048, "precision": "high", "prefix_store": False}
IGNORED_ARGUMENTS = ("batch_size", "max_batch_size", "device")  # passed by its command line; batches are always full
MAX_TOKENS = 256  # of an output, if the task sets no limit
MAX_TOKENS_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")

Request = tuple[object, list[int], list[int]]  # the texts, and the tokens of the context and of the continuation


@register_model("localinfer")
class LocalInferLM(TemplateLM):  # type: ignore[misc]  # the package has no types
    """A model of localinfer as lm-evaluation-harness uses it. `options` are those of `localinfer.load`."""

    def __init__(self, pretrained: str, **options: Any) -> None:
        super().__init__()
        self.name = str(pretrained)
        for name in IGNORED_ARGUMENTS:
            options.pop(name, None)
        self.model = load(self.name, **{**DEFAULTS, **options})
        if self.model.parallel < MIN_SEQUENCES:
            raise UsageError(f"parallel: must be at least {MIN_SEQUENCES}, not {self.model.parallel}")

    # --- tokens ---

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self.model.tokenizer.eos or 0

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context: BOS, or else the one that ends a text."""
        bos = self.model.tokenizer.bos
        return self.eot_token_id if bos is None else bos

    @property
    def max_length(self) -> int:
        """The size of the context in tokens."""
        return self.model.n_ctx

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        """Return the tokens of a text. By default, they begin with BOS if the model expects it."""
        add_special = add_special_tokens is not False
        ids = self.model.tokenize(string, add_special=add_special, parse_special=True)
        n_suffix = len(self.model.tokenizer.eos_suffix) if add_special else 0
        return ids[: len(ids) - n_suffix]

    # --- requests ---

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return ln p of each continuation, and whether it is what greedy decoding would generate.

        Adjacent requests with the same context are one group. A context that is too long loses its first tokens.
        """
        groups = [list(group) for _, group in groupby(requests, key=lambda request: request[1])]
        texts = [[self._scored_text(context, rest) for _, context, rest in group] for group in groups]
        answers: list[list[tuple[float, bool]]] = [[] for _ in groups]
        with (
            closing(score_groups(self.model.engine, texts)) as scored,
            tqdm(total=len(requests), disable=disable_tqdm, desc="Running loglikelihood requests") as progress,
        ):
            for number, scores in scored:
                answers[number] = [(float(each.logprobs.sum()), each.is_greedy) for each in scores]
                progress.update(len(scores))
        found = [answer for group in answers for answer in group]
        for (texts_of_request, _, _), answer in zip(requests, found, strict=True):
            if texts_of_request is not None:
                self.cache_hook.add_partial("loglikelihood", texts_of_request, answer)
        return found

    def _scored_text(self, context: Sequence[int], continuation: Sequence[int]) -> ScoredText:
        """Return the last tokens of a context with its continuation, as many as fit; the last one is only predicted."""
        ids = [*context, *continuation][-(self.max_length + 1) :]
        return ScoredText(ids, max(1, len(ids) - len(continuation)))

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return ln p of whole texts, in windows of the size of the context."""
        windows = [list(self._windows(request.args[0])) for request in requests]
        scores = iter(self._loglikelihood_tokens([each for own in windows for each in own], disable_tqdm))
        totals = [sum(next(scores)[0] for _ in own) for own in windows]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _windows(self, text: str) -> Iterator[Request]:
        for window in get_rolling_token_windows(
            token_list=self.tok_encode(text, add_special_tokens=False), prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length, context_len=1,
        ):  # fmt: skip
            context, continuation = make_disjoint_window(window)
            yield None, context, continuation

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the output for each context, up to the first stop string."""
        prompts = [self._prompt(*request.args) for request in requests]
        outputs = [""] * len(prompts)
        with (
            closing(generate_outputs(self.model, prompts)) as generated,
            tqdm(total=len(requests), disable=disable_tqdm, desc="Running generate_until requests") as progress,
        ):
            for number, output in generated:
                outputs[number] = output
                self.cache_hook.add_partial("generate_until", requests[number].args, output)
                progress.update()
        return outputs

    def _prompt(self, context: str, settings: Mapping[str, Any]) -> Prompt:
        """Return the prompt of a request. A context that leaves no space for an output loses its first tokens."""
        limits = [settings[name] for name in MAX_TOKENS_NAMES if settings.get(name)]
        n_predict = min(int(next(iter(limits), MAX_TOKENS)), self.max_length - 1)
        until = settings.get("until") or []
        options: RunKeywords = {"n_predict": n_predict, "stop": [until] if isinstance(until, str) else list(until)}
        options["temp"] = float(settings.get("temperature", 0.0)) if settings.get("do_sample", True) else 0.0
        if "top_p" in settings:
            options["top_p"] = float(settings["top_p"])
        if "top_k" in settings:
            options["top_k"] = int(settings["top_k"])
        return Prompt(self.tok_encode(context)[-(self.max_length - n_predict) :], options)

    # --- chats ---

    @property
    def tokenizer_name(self) -> str:
        """A name for the tokenizer, which identifies cached requests."""
        return self.name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the source of the model's chat template."""
        return str(self.model.metadata.get("tokenizer.chat_template", "")) if chat_template else ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the prompt of a conversation."""
        return self.model.render(
            chat_history, add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        ).text  # fmt: skip


def main() -> None:
    """Run the command line of lm-evaluation-harness."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
