"""The tools of the MCP server: `generate`, `embed`, `rerank` and `list_models`.

Their parameters and results are described by JSON schemas, which the library makes of these functions and classes.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, Field

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.generation.pieces import Piece
from localinfer.generation.result import GenerationResult
from localinfer.mcp.server.jobs import Job
from localinfer.mcp.server.models import ServedModel
from localinfer.options.keywords import RunKeywords
from localinfer.version import VERSION

if TYPE_CHECKING:
    from localinfer import Model

DEFAULT_TOKENS = 1024
READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)
T = TypeVar("T")

Prompt = Annotated[str, Field(description="The question or instruction for the model.")]
System = Annotated[str, Field(description="The system prompt.")]
MaxTokens = Annotated[int, Field(description="The answer has at most this many tokens.", ge=1, le=1 << 20)]
Temperature = Annotated[
    float | None, Field(description="Sampling temperature; 0 always takes the most probable token.", ge=0, le=100)
]
Schema = Annotated[
    dict[str, Any] | None, Field(description="A JSON schema. The answer is then JSON that matches it.")
]
Texts = Annotated[list[str], Field(description="The texts.", min_length=1, max_length=10_000)]
Documents = Annotated[list[str], Field(description="The documents to rank.", min_length=1, max_length=10_000)]
Query = Annotated[str, Field(description="What the documents are to be relevant to.", min_length=1)]
TopN = Annotated[int | None, Field(description="Return only the best documents, so many.", ge=1)]


class Generated(BaseModel):
    """A generated text."""

    text: str
    model: str
    finish_reason: str
    prompt_tokens: int
    generated_tokens: int


class Embeddings(BaseModel):
    """An embedding per text, in their order."""

    model: str
    embeddings: list[list[float]]


class Ranked(BaseModel):
    """A document, its index in the list of documents, and its score."""

    index: int
    relevance_score: float
    document: str


class Ranking(BaseModel):
    """The documents, the most relevant one first."""

    model: str
    results: list[Ranked]


class ModelInfo(BaseModel):
    """A model, the tool that uses it, and its context length once it is loaded."""

    name: str
    tool: str
    loaded: bool
    context_length: int | None


class ModelList(BaseModel):
    models: list[ModelInfo]


@dataclass(frozen=True, kw_only=True)
class Models:
    """The models of the tools. There is no tool `embed` or `rerank` without its model."""

    generate: ServedModel
    embed: ServedModel | None = None
    rerank: ServedModel | None = None

    def by_tool(self) -> dict[str, ServedModel]:
        models = {"generate": self.generate, "embed": self.embed, "rerank": self.rerank}
        return {tool: model for tool, model in models.items() if model}

    def close(self) -> None:
        for model in self.by_tool().values():
            model.close()


def create_server(models: Models) -> MCPServer[Any]:
    """Return a server with these models."""
    server = MCPServer(
        "localinfer", title="localinfer", version=VERSION, log_level="CRITICAL",
        instructions="Language models that run on this machine. The first call of a tool loads its model.",
    )  # fmt: skip
    add_generate(server, models.generate)
    if models.embed:
        add_embed(server, models.embed)
    if models.rerank:
        add_rerank(server, models.rerank)

    @server.tool(annotations=READ_ONLY)
    def list_models() -> ModelList:
        """List the models of this server, and which tool uses each."""
        return ModelList(models=[
            ModelInfo(name=model.name, tool=tool, loaded=model.n_ctx is not None, context_length=model.n_ctx)
            for tool, model in models.by_tool().items()
        ])  # fmt: skip

    return server


def add_generate(server: MCPServer[Any], model: ServedModel) -> None:
    @server.tool(annotations=READ_ONLY, description=f"Answer a prompt with the local language model {model.name}.")
    async def generate(
        context: Context, prompt: Prompt, system: System = "", max_tokens: MaxTokens = DEFAULT_TOKENS,
        temperature: Temperature = None, json_schema: Schema = None,
    ) -> Annotated[CallToolResult, Generated]:  # fmt: skip
        options = RunKeywords(n_predict=max_tokens)
        if temperature is not None:
            options["temp"] = temperature
        if json_schema is not None:
            options["schema"] = json_schema
        result = await run(model, context, lambda job: answer(model, job, prompt, system, options))
        generated = Generated(
            text=result.text, model=model.name, finish_reason=result.stats.finish_reason,
            prompt_tokens=result.stats.prompt_tokens, generated_tokens=result.stats.generated_tokens,
        )  # fmt: skip
        content = [TextContent(type="text", text=result.text)]
        return CallToolResult(content=content, structured_content=generated.model_dump())  # type: ignore[arg-type]


def answer(served: ServedModel, job: Job, prompt: str, system: str, options: RunKeywords) -> GenerationResult:
    """Generate the answer in the thread of a job. A model without a chat template continues the prompt."""
    model = served.open(job)
    if has_chat_template(model):
        messages = [{"role": "system", "content": system}] if system else []
        stream = model.stream_chat([*messages, {"role": "user", "content": prompt}], **options)
    else:
        stream = model.stream("\n\n".join(filter(None, [system, prompt])), **options)
    pieces: list[Piece] = []
    with closing(stream):
        for piece in stream:
            pieces.append(piece)
            job.report(len(pieces), options["n_predict"], "generating")
    return GenerationResult.from_pieces(pieces, stream.stats)


def has_chat_template(model: "Model") -> bool:
    try:
        model.require_chat_template()
    except UnsupportedError:
        return False
    return True


def add_embed(server: MCPServer[Any], model: ServedModel) -> None:
    @server.tool(annotations=READ_ONLY, description=f"Compute the embeddings of texts with the model {model.name}.")
    async def embed(context: Context, texts: Texts) -> Embeddings:
        vectors = await run(model, context, lambda job: model.open(job).embed(texts, progress=steps(job)))
        return Embeddings(model=model.name, embeddings=vectors.tolist())


def add_rerank(server: MCPServer[Any], model: ServedModel) -> None:
    @server.tool(
        annotations=READ_ONLY, description=f"Rank documents by relevance to a query with the model {model.name}."
    )
    async def rerank(context: Context, query: Query, documents: Documents, top_n: TopN = None) -> Ranking:
        def rank(job: Job) -> Sequence[Any]:
            return model.open(job).rerank(query, documents, progress=steps(job))

        ranked = [
            Ranked(index=each.index, relevance_score=each.score, document=each.document)
            for each in await run(model, context, rank)
        ]
        return Ranking(model=model.name, results=ranked[:top_n])


def steps(job: Job) -> Callable[[str, int, int], None]:
    """Return a progress function that reports the parts of a job that are done."""
    return lambda stage, done, total: job.report(done, total or None, stage)


async def run(model: ServedModel, context: Context[Any, Any], work: Callable[[Job], T]) -> T:
    """Run a job of a model, and report its progress to the client. Errors of localinfer are those of the tool."""
    try:
        return await model.queue.run(work, context.report_progress)
    except LocalInferError as error:
        raise ToolError(str(error)) from None
