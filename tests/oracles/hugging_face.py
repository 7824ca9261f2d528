"""Chat templates rendered by transformers: requests on stdin, results on stdout, one line of JSON each.

    PYTHON_WITH_TRANSFORMERS tests/oracles/hugging_face.py < requests.jsonl > answers.jsonl

A request is {"template": ..., "messages": ...} plus the other arguments of `localinfer.Model.render`; a result is
{"text": ...} or {"error": ...}. The script needs transformers but not localinfer. `answers` runs it with another
Python.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def answers(python: str, requests: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the results of the transformers package of this Python."""
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([python, __file__], input=lines, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), **TOKENS)
    for line in sys.stdin:
        print(json.dumps(answer(tokenizer, **json.loads(line))), flush=True)


def answer(tokenizer: Any, template: str, messages: list[Any], template_kwargs: dict[str, Any] | None = None,
           add_generation_prompt: bool = True, **more: Any) -> dict[str, str]:
    adds_prompt = add_generation_prompt and not more.get("continue_final_message")
    more |= {"chat_template": template, "add_generation_prompt": adds_prompt, **(template_kwargs or {})}
    try:
        return {"text": tokenizer.apply_chat_template(messages, tokenize=False, **more)}
    except Exception as error:  # templates can raise any exception
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # transformers must not import modules of the tests
    main()
