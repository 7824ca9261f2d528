"""The command `localinfer retrieve`: the passages of files that are most similar to a query, as llama-retrieval."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.flags import JsonOption, ModelArgument, PoolingOption, with_options
from cli.files.stdin import read_stdin
from cli.files.text_input import decode_argument, read_text_file
from cli.generation.embed import UNUSED_OPTIONS, non_empty_lines, note_default_pooling
from cli.models.loading import open_model
from cli.terminal import screen
from localinfer.errors import UsageError
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.embedding.passages import Passage


@dataclass(frozen=True, kw_only=True)
class PassageOptions:
    """The files, and how they are split."""

    files: Annotated[
        list[str] | None,
        typer.Option("--context-file", metavar="FILE", help="A UTF-8 text file; may be repeated."),
    ] = None
    size: Annotated[
        int, typer.Option("--chunk-size", metavar="N", min=1, help="Least number of characters of a passage.")
    ] = 64
    separator: Annotated[
        str,
        typer.Option("--chunk-separator", metavar="TEXT", help="Where a passage may end.", show_default="a newline"),
    ] = "\n"
    top: Annotated[int, typer.Option("--top-k", metavar="N", min=1, help="Number of passages to show.")] = 3

    def read(self) -> "list[Passage]":
        """Return the passages of all files. Raises UsageError if there are none."""
        from localinfer.embedding.passages import split_text

        if not self.files:
            raise UsageError("--context-file: missing: name one or more text files")
        if not self.separator:
            raise UsageError("--chunk-separator: is empty")
        passages = [
            passage
            for name in self.files
            for passage in split_text(read_text_file(name), name, self.size, self.separator)
        ]
        if not passages:
            raise UsageError("--context-file: the files have no text")
        return passages


@with_options("model", "adapters", without=UNUSED_OPTIONS)
def retrieve_command(
    model: ModelArgument,
    given: Layer,
    *,
    prompt: Annotated[
        list[str] | None, typer.Option("-p", "--prompt", metavar="TEXT", help="A query; may be repeated.")
    ] = None,
    options: PassageOptions,
    pooling: PoolingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the passages of files that are most similar to a query.

    The files are split into passages, whose embeddings are compared with that of each query by cosine similarity.
    Queries are the values of -p, otherwise the lines that you type, or those of stdin.

    \b
    Examples:
      localinfer retrieve minilm.gguf --context-file manual.txt -p "How is it installed?"
      localinfer retrieve minilm.gguf --context-file manual.txt --chunk-size 300 --top-k 5 < questions.txt
    """
    passages, status = options.read(), screen.Status()
    with closing(open_model(model, given, status)) as opened:
        note_default_pooling(opened, pooling)

        from localinfer.embedding.prompts import DOCUMENT_NAMES, QUERY_NAMES

        prompts = opened.prompts
        texts = [each.text for each in passages]
        for_queries, for_passages = (prompts.select(prompts.named(names)) for names in (QUERY_NAMES, DOCUMENT_NAMES))
        embeddings = opened.embed(texts, pooling=pooling or "", prompt=for_passages, truncate=True, progress=status)
        for query in queries(prompt):
            [embedding] = opened.embed([query], pooling=pooling or "", prompt=for_queries, truncate=True)

            from localinfer.embedding.passages import most_similar

            for index, similarity in most_similar(embedding, embeddings, options.top):
                screen.write(line(passages[index], similarity, query, as_json=as_json) + "\n")


def queries(given: list[str] | None) -> Iterator[str]:
    """Yield the queries of the command line, or those that the user types, or the lines of stdin."""
    if given is not None:
        yield from (query for query in map(decode_argument, given) if query.strip())
    elif sys.stdin.isatty():
        yield from typed_queries()
    else:
        yield from non_empty_lines(read_stdin() or "")


def typed_queries() -> Iterator[str]:
    screen.write_question("query: ")
    for text in sys.stdin:
        if text.strip():
            yield text.strip()
        screen.write_question("query: ")


def line(passage: "Passage", similarity: float, query: str, *, as_json: bool) -> str:
    if as_json:
        found = {"query": query, "similarity": round(similarity, 6), **passage._asdict()}
        return json.dumps(found, ensure_ascii=False)
    where = f"{screen.one_line(passage.file)}:{passage.position}"
    return f"{similarity:7.4f}  {where}  {screen.one_line(' '.join(passage.text.split()))}"
