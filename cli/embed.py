"""`localinfer embed` and `localinfer rerank`: texts as vectors, and documents by how well they answer a query."""

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import screen
from cli.files import promised, write_whole
from cli.flags import FileOption, ModelArgument, NoStdinOption, with_options
from cli.loading import open_model
from cli.stdin import from_stdin
from cli.texts import STDIN, from_argument, from_file, given_text
from localinfer.errors import UsageError
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer import Model

RING = ("ctx_policy", "keep")  # options without a meaning here: texts are whole
ENDINGS = (".npy", ".jsonl")
TruncateOption = Annotated[
    bool, typer.Option("--truncate", help="Leave out the end of a text that is too long, and say so.")
]


@with_options("model", without=RING)
def embed_command(
    model: ModelArgument,
    given: Layer,
    prompt: Annotated[
        list[str] | None, typer.Option("-p", "--prompt", metavar="TEXT", help="A text, also of several lines.")
    ] = None,
    file: FileOption = None,
    no_stdin: NoStdinOption = False,
    pooling: Annotated[
        str | None,
        typer.Option(
            "--pooling", metavar="mean|cls|last|rank",
            help="How tokens become one vector. [default: as the file says, or mean]",
        ),
    ] = None,
    normalize: Annotated[
        float,
        typer.Option(
            "--normalize", "--embd-normalize", metavar="N", show_default=False,
            help="Divide vectors by a norm: 2 Euclidean, 1 taxicab, 0 the largest value / 32760, -1 none. [default: 2]",
        ),
    ] = 2,
    out: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write there: .npy (float32, a row a text) or .jsonl."),
    ] = None,
    truncate: TruncateOption = False,
) -> None:  # fmt: skip
    """Make a vector of each text, for comparing them.

    Texts are those of -p, then the lines of -f and of stdin. A line of JSON each goes to stdout, in that order:
    {"index": 0, "embedding": [...]}, or to -o.

    \b
      localinfer embed minilm.gguf -p "A dog runs." -p "An animal moves."
      localinfer embed minilm.gguf -f sentences.txt -o sentences.npy
      cat sentences.txt | localinfer embed bge-m3.gguf --pooling cls > vectors.jsonl
    """
    place = promised("--output", out, ENDINGS) if out else None
    texts, status = [*given_texts(prompt, file, with_stdin=not no_stdin)], screen.Status()
    if not texts:
        raise UsageError("no text: give -p TEXT or -f FILE, or pipe some into stdin, a line each")
    with closing(open_model(model, given, status)) as opened:
        say_what_is_chosen(opened, pooling)
        vectors = opened.embed(texts, pooling=pooling or "", normalize=normalize, truncate=truncate, progress=status)
    if place is None:
        for line in lines(vectors):
            screen.write(line)
    else:
        write_whole(place, as_npy(vectors) if place.suffix.lower() == ".npy" else "".join(lines(vectors)).encode())
        screen.note(f"{out}: {len(vectors):,} vectors of {vectors.shape[1]} values")


@with_options("model", without=RING)
def rerank_command(
    model: ModelArgument,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What the documents shall answer.")],
    given: Layer,
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="[DOCUMENT]...", help="Texts; without any, the lines of -f or stdin.")
    ] = None,
    file: FileOption = None,
    no_stdin: NoStdinOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write a JSON object a document: index, relevance_score, document.")
    ] = False,
    top: Annotated[int, typer.Option("--top-n", metavar="N", min=0, help="Only the best so many (0: all).")] = 0,
    truncate: TruncateOption = False,
) -> None:
    """Sort documents by how well they answer a query, best first.

    \b
      localinfer rerank bge-reranker-v2-m3.gguf "What is a panda?" "It is a bear." "It is a fish."
      localinfer rerank reranker.gguf "capital of France" -f documents.txt --top-n 3
    """
    texts, status = [*given_texts(documents, file, with_stdin=not (documents or no_stdin))], screen.Status()
    if not texts:
        raise UsageError("no documents: give them behind the query, or -f FILE, or pipe some into stdin, a line each")
    with closing(open_model(model, given, status)) as opened:
        scores = opened.rerank(from_argument(query), texts, truncate=truncate, progress=status).tolist()
    best = sorted(range(len(texts)), key=lambda index: -scores[index])
    for index in best[: top or None]:
        found = {"index": index, "relevance_score": round(scores[index], 6), "document": texts[index]}
        shown = f"{scores[index]:10.4f}  {screen.one_line(texts[index])}"
        screen.write((json.dumps(found, ensure_ascii=False) if as_json else shown) + "\n")


def given_texts(arguments: Iterable[str] | None, file: str | None, *, with_stdin: bool) -> Iterator[str]:
    """The texts of arguments, then the lines of a file, then those of stdin; empty lines are no texts."""
    texts = [from_argument(each) for each in arguments or () if each != STDIN]
    yield from texts
    if file is not None and file != STDIN:
        yield from filled_lines(from_file(file))
        texts.append(file)
    if with_stdin:
        piped = given_text("", None) if texts and file != STDIN else from_stdin()
        yield from filled_lines(piped or "")


def filled_lines(text: str) -> Iterator[str]:
    return (line.removesuffix("\r") for line in text.split("\n") if line.strip())


def say_what_is_chosen(model: "Model", pooling: str | None) -> None:
    """A model that was made to continue texts says nothing of pooling: then there is something to be said."""
    name = model.metadata["general.architecture"]
    if not pooling and f"{name}.pooling_type" not in model.metadata:
        screen.aside("the file says nothing of pooling: the mean of all tokens (--pooling sets another)")


def lines(vectors: Any) -> Iterator[str]:
    """A JSON object a vector, with as many digits as tell float32 apart."""
    for index, vector in enumerate(vectors):
        numbers = ", ".join(map(str, vector))
        yield f'{{"index": {index}, "embedding": [{numbers}]}}\n'


def as_npy(vectors: Any) -> bytes:
    import numpy as np

    content = BytesIO()
    np.save(content, vectors)
    return content.getvalue()
