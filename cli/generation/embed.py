"""The commands `localinfer embed` and `localinfer rerank`: text embeddings and reranking."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments.flags import ModelArgument, PoolingOption, TextSource, with_options
from cli.files.output_files import writable_path, write_atomically
from cli.files.stdin import read_stdin
from cli.files.text_input import STDIN, decode_argument, read_optional_prompt, read_text_file
from cli.models.loading import open_model, require_known_model
from cli.terminal import screen
from localinfer.errors import UnsupportedError, UsageError
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer import Model

UNUSED_OPTIONS = ("ctx_policy", "keep")  # texts are never shifted or truncated by these options
EXTENSIONS = (".npy", ".jsonl")
TruncateOption = Annotated[bool, typer.Option("--truncate", help="Truncate texts that are too long, with a warning.")]


@dataclass(frozen=True, kw_only=True)
class EmbeddingOptions:
    """How embeddings are computed from those of the tokens."""

    pooling: PoolingOption = None
    normalize: Annotated[
        float,
        typer.Option(
            "--normalize", "--embd-normalize", metavar="N", show_default=False,
            help="Normalization: 2 Euclidean, 1 taxicab, 0 max absolute / 32760, -1 none. [default: 2]",
        ),
    ] = 2  # fmt: skip
    dimensions: Annotated[
        int,
        typer.Option(
            "--dimensions", metavar="N", min=0, show_default=False,
            help="Cut embeddings to N values before normalization (Matryoshka embeddings). [default: 0, all]",
        ),
    ] = 0  # fmt: skip
    prompt_name: Annotated[
        str | None,
        typer.Option(
            "--prompt-name", metavar="NAME",
            help="Put the prompt of the model file with this name before each text, such as query or document.",
        ),
    ] = None  # fmt: skip
    prompt_prefix: Annotated[
        str | None,
        typer.Option("--prompt-prefix", metavar="TEXT", help="Put this text before each text, without a space."),
    ] = None
    separator: Annotated[
        str | None,
        typer.Option("--embd-separator", metavar="TEXT", help="Split the values of -p into several texts by this."),
    ] = None
    attention: Annotated[
        str | None,
        typer.Option("--attention", metavar="causal|non-causal", help="An error unless the model has this attention."),
    ] = None

    def split(self, texts: list[str] | None) -> list[str] | None:
        """Split texts by the separator, if there is one."""
        if not self.separator or texts is None:
            return texts
        return [part for text in texts for part in text.split(self.separator)]

    def select_prompt(self, model: "Model") -> str:
        """Return the text that is put before each text. Raises UsageError if the model file has no such prompt."""
        prefix = None if self.prompt_prefix is None else decode_argument(self.prompt_prefix)
        return model.prompts.select(self.prompt_name, prefix)

    def check_attention(self, model: "Model") -> None:
        """Raise UnsupportedError if another attention than the model's is wanted."""
        actual = "causal" if model.engine.compiled_graph.model_graph.context.causal else "non-causal"
        if self.attention not in (None, actual):
            raise UnsupportedError(f"--attention {self.attention}: the attention of this model is {actual}")


@with_options("model", "adapters", without=UNUSED_OPTIONS)
def embed_command(
    model: ModelArgument,
    given: Layer,
    *,
    prompt: Annotated[
        list[str] | None, typer.Option("-p", "--prompt", metavar="TEXT", help="A text; may be repeated.")
    ] = None,
    source: TextSource,
    embedding: EmbeddingOptions,
    out: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write to a .npy (float32) or .jsonl file."),
    ] = None,
    truncate: TruncateOption = False,
) -> None:
    """Compute text embeddings.

    The texts are the values of -p, then the lines of -f and of stdin. The output has one JSON object per line, in
    the same order: {"index": 0, "embedding": [...]}. With --pooling none, "embedding" is a list of vectors.

    \b
    Examples:
      localinfer embed minilm.gguf -p "A dog runs." -p "An animal moves."
      localinfer embed minilm.gguf -f sentences.txt -o sentences.npy
      cat sentences.txt | localinfer embed bge-m3.gguf --pooling cls > vectors.jsonl
      localinfer embed embeddinggemma.gguf -p "What is a panda?" --prompt-name query --dimensions 256
    """
    path = writable_path("--output", out, EXTENSIONS, inputs=source.files or ()) if out else None
    prompts, status = embedding.split(prompt), screen.Status()
    texts = [*read_texts(prompts, source.files, with_stdin=not source.no_stdin)]
    if not texts:
        require_known_model(model)
        raise UsageError("no text: use -p TEXT or -f FILE, or pipe texts into stdin, one per line")
    is_array = path is not None and path.suffix.lower() == ".npy"
    if is_array and embedding.pooling == "none" and len(texts) > 1:
        raise UsageError("--pooling none: a .npy file has the vectors of one text; use --output FILE.jsonl")
    with closing(open_model(model, given, status)) as opened:
        embedding.check_attention(opened)
        vectors = compute(opened, texts, embedding, truncate=truncate, progress=status)
    if path is None:
        for line in json_lines(vectors):
            screen.write(line)
        return
    rows = vectors[0] if embedding.pooling == "none" else vectors
    write_atomically(path, as_npy(rows) if is_array else "".join(json_lines(vectors)).encode())
    count = sum(map(len, vectors)) if embedding.pooling == "none" else len(vectors)
    screen.note(f"{out}: {count:,} vectors of {rows.shape[1]} values")


def compute(
    model: "Model", texts: list[str], embedding: EmbeddingOptions, *, truncate: bool, progress: screen.Status
) -> Any:
    """Return the vectors of texts, float32 (n_texts, n), or with pooling none a list of those of their tokens."""
    note_default_pooling(model, embedding.pooling)
    prompt = embedding.select_prompt(model)
    if prompt and embedding.prompt_name is None and embedding.prompt_prefix is None:
        screen.note_dim(f"prompt before each text: {screen.one_line(repr(prompt))} (see --prompt-name)")
    if embedding.pooling == "none":
        return model.embed_tokens(
            texts, normalize=embedding.normalize, dimensions=embedding.dimensions, prompt=prompt, truncate=truncate,
            progress=progress)  # fmt: skip
    return model.embed(
        texts, pooling=embedding.pooling or "", normalize=embedding.normalize, dimensions=embedding.dimensions,
        prompt=prompt, truncate=truncate, progress=progress)  # fmt: skip


@with_options("model", "adapters", without=UNUSED_OPTIONS)
def rerank_command(
    model: ModelArgument,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The query.")],
    given: Layer,
    *,
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="[DOCUMENT]...", help="Documents. [default: the lines of -f or stdin]")
    ] = None,
    source: TextSource,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per document: index, relevance_score, document.")
    ] = False,
    top: Annotated[
        int, typer.Option("--top-n", metavar="N", min=0, help="Print only the best N documents (0: all).")
    ] = 0,
    instruction: Annotated[
        str, typer.Option("--instruction", metavar="TEXT", help="What makes a document relevant, to models that ask.")
    ] = "",
    sigmoid: Annotated[
        bool, typer.Option("--sigmoid", help="Map scores to 0..1 by 1 / (1 + e^-score).")
    ] = False,
    truncate: TruncateOption = False,
) -> None:
    """Rank documents by relevance to a query.

    The most relevant document comes first.

    \b
    Examples:
      localinfer rerank bge-reranker-v2-m3.gguf "What is a panda?" "It is a bear." "It is a fish."
      localinfer rerank qwen3-reranker.gguf "panda" -f documents.txt --instruction "Find texts about animals"
      localinfer rerank reranker.gguf "capital of France" -f documents.txt --top-n 3
    """
    with_stdin = not (documents or source.no_stdin)
    texts, status = [*read_texts(documents, source.files, with_stdin=with_stdin)], screen.Status()
    if not texts:
        require_known_model(model)
        raise UsageError("no documents: give them after the query, use -f FILE, or pipe them into stdin, one per line")
    with closing(open_model(model, given, status)) as opened:
        ranked = opened.rerank(
            decode_argument(query), texts, instruction=decode_argument(instruction), sigmoid=sigmoid, truncate=truncate,
            progress=status)  # fmt: skip
    for each in ranked[: top or None]:
        found = {"index": each.index, "relevance_score": round(each.score, 6), "document": each.document}
        shown = f"{each.score:10.4f}  {screen.one_line(each.document)}"
        screen.write((json.dumps(found, ensure_ascii=False) if as_json else shown) + "\n")


def read_texts(arguments: Iterable[str] | None, files: Sequence[str] | None, *, with_stdin: bool) -> Iterator[str]:
    """Yield the texts of arguments, then the lines of files and of stdin, without empty lines."""
    texts, names = [decode_argument(each) for each in arguments or () if each != STDIN], files or ()
    yield from texts
    for name in names:
        if name != STDIN:
            yield from non_empty_lines(read_text_file(name))
    if with_stdin:
        has_other = (texts or names) and STDIN not in names
        piped = read_optional_prompt([""], []) if has_other else read_stdin()
        yield from non_empty_lines(piped or "")


def non_empty_lines(text: str) -> Iterator[str]:
    return (line.removesuffix("\r") for line in text.split("\n") if line.strip())


def note_default_pooling(model: "Model", pooling: str | None) -> None:
    """Note the default pooling if neither the user nor the model file specifies one."""
    name = model.metadata["general.architecture"]
    if not pooling and f"{name}.pooling_type" not in model.metadata:
        screen.note_dim("the model file does not specify pooling: using mean (see --pooling)")


def json_lines(vectors: Any) -> Iterator[str]:
    """Yield a JSON object per text, with enough digits to represent float32 exactly."""
    for index, vector in enumerate(vectors):
        yield f'{{"index": {index}, "embedding": {json_numbers(vector)}}}\n'


def json_numbers(vector: Any) -> str:
    """Return a vector, or a list of vectors, as JSON."""
    return f"[{', '.join(map(str, vector) if vector.ndim == 1 else map(json_numbers, vector))}]"


def as_npy(vectors: Any) -> bytes:
    import numpy as np

    content = BytesIO()
    np.save(content, vectors)
    return content.getvalue()
