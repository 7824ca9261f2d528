"""Compares the rendering of all chat templates of llama.cpp's collection, with eight conversations, to transformers.

    python tests/benchmarks/checks/chat_templates.py                                  # downloads the collection, 73 MiB
    python tests/benchmarks/checks/chat_templates.py --folder llama.cpp/models/templates --transformers other/bin/python

Needs transformers, here or in another environment. An outcome is one of

    same        the same text as transformers
    other format  the same text as transformers renders with contents as strings (or parts), or arguments as JSON
                strings, because the template supports only this format: with the other one, transformers fails, omits
                contents, or prints them as Python values
    refused     the template raises an error, which is one line here
    DIFFERENT   none of these
"""

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import conversations  # noqa: E402
import hugging_face  # noqa: E402

from localinfer.chat_template.content_format import render_in_supported_format  # noqa: E402
from localinfer.chat_template.conversation import Conversation  # noqa: E402
from localinfer.chat_template.template import ChatTemplate  # noqa: E402
from localinfer.errors import LocalInferError  # noqa: E402

PEER = "llama-cpp-python==0.3.36"
TEMPLATE_FOLDER = "vendor/llama.cpp/models/templates"
CODE = ("'type': 'text'", '"type": "text"', "'city': 'Paris'", r"\"city\"")
OUTCOMES = ("same", "other format", "refused", "DIFFERENT")
FORMATS = (lambda each: each, conversations.in_texts, conversations.in_parts, conversations.with_json_arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, help="folder of the templates (default: downloaded with pip)")
    parser.add_argument("--transformers", default=sys.executable, metavar="PYTHON", help="Python with transformers")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print a line for each result that is not the same"
    )
    arguments = parser.parse_args()
    templates = dict(sorted(in_folder(arguments.folder) if arguments.folder else fetched()))
    cases = [(name, which) for name in templates for which in conversations.CONVERSATIONS]
    requests = [
        {"template": templates[name], **convert(conversations.CONVERSATIONS[which])}
        for name, which in cases
        for convert in FORMATS
    ]
    reference = iter(hugging_face.answers(arguments.transformers, requests))
    ours = answers(templates)
    counts: dict[str, Counter[str]] = {which: Counter() for which in conversations.CONVERSATIONS}
    for name, which in cases:
        conversation = conversations.CONVERSATIONS[which]
        our = next(ours)
        actual = outcome(our, [next(reference) for _ in FORMATS], conversation)
        counts[which][actual] += 1
        if actual == "DIFFERENT" or (arguments.verbose and actual != "same"):
            print(f"{actual}: {name}, {which}: {our.get('error', '')}")
    print(f"{len(templates)} templates")
    print(f"{'':12}" + "".join(f"{each:>12}" for each in OUTCOMES))
    for which, counter in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        print(f"{which:12}" + "".join(f"{counter[each]:12}" for each in OUTCOMES))
    raise SystemExit(any(counter["DIFFERENT"] for counter in counts.values()))


def in_folder(folder: Path) -> Iterator[tuple[str, str]]:
    return ((path.stem, path.read_text("utf-8")) for path in folder.glob("*.jinja"))


def fetched() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        download = ["pip", "download", "--no-deps", "--no-binary", "llama-cpp-python", "--dest", folder, PEER]
        subprocess.run([sys.executable, "-m", *download], check=True, stdout=subprocess.DEVNULL)
        [archive] = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            for member in tar:
                path = Path(member.name)
                if TEMPLATE_FOLDER in member.name and path.suffix == ".jinja":
                    yield path.stem, io.TextIOWrapper(tar.extractfile(member), "utf-8").read()


def answers(templates: dict[str, str]) -> Iterator[dict[str, str]]:
    """Render all conversations with localinfer, from the messages to the text before tokenization."""
    for template in templates.values():
        chat_template = ChatTemplate(template, hugging_face.TOKENS)
        for conversation in conversations.CONVERSATIONS.values():
            try:
                yield {"text": render_in_supported_format(chat_template, Conversation(**conversation).variables()).text}
            except LocalInferError as error:
                yield {"error": str(error)}
        chat_template.close()


def outcome(ours: dict[str, str], reference: list[dict[str, str]], conversation: dict[str, Any]) -> str:
    as_given, *others = reference
    if is_understood(as_given, conversation):
        return "same" if ours == as_given else "DIFFERENT"
    understood = [other for other in others if is_understood(other, conversation)]
    if understood:
        return "other format" if ours in understood else "DIFFERENT"
    if "error" in as_given:
        return "refused" if "error" in ours and "\n" not in ours["error"] else "DIFFERENT"
    return "same" if ours == as_given else "DIFFERENT"


def is_understood(answer: dict[str, str], conversation: dict[str, Any]) -> bool:
    """Whether an answer has no error, contains the question, and contains no Python representation of a value."""
    text = answer.get("text", "")
    return conversations.QUESTION["content"] in text and not any(marker in text for marker in CODE)


if __name__ == "__main__":
    main()
