"""All addresses, and what stands around them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from localinfer.errors import LocalInferError
from localinfer.options import FLAGS
from localinfer.server import llama_cpp, metrics, page
from localinfer.server.desk import Desk
from localinfer.server.gate import Gate
from localinfer.server.intake import Intake
from localinfer.server.ollama import answers as ollama_answers
from localinfer.server.ollama import elsewhere, embeddings
from localinfer.server.ollama import models as ollama_models
from localinfer.server.openai import addresses, models
from localinfer.server.problems import Problem, problem_of
from localinfer.server.settings import Settings
from localinfer.server.shelf import Shelf
from localinfer.server.streams import Json

if TYPE_CHECKING:
    from localinfer.model import Model

GET, POST = ["GET"], ["POST"]

OPENAI = [
    Route("/v1/chat/completions", addresses.chat_completions, methods=POST),
    Route("/v1/completions", addresses.completions, methods=POST),
    Route("/v1/responses", addresses.responses, methods=POST),
    Route("/v1/embeddings", addresses.embeddings, methods=POST),
    Route("/v1/models", models.listing, methods=GET),
    Route("/v1/models/{name:path}", models.one, methods=GET),
]
LLAMA_CPP = [
    *(Route(path, llama_cpp.health, methods=GET) for path in ("/health", "/v1/health")),
    Route("/props", llama_cpp.props, methods=GET),
    Route("/metrics", metrics.told, methods=GET),
    Route("/slots", llama_cpp.slots, methods=GET),
    Route("/tokenize", llama_cpp.tokenize, methods=POST),
    Route("/detokenize", llama_cpp.detokenize, methods=POST),
    Route("/apply-template", llama_cpp.apply_template, methods=POST),
    *(Route(path, llama_cpp.completion, methods=POST) for path in ("/completion", "/completions")),
    Route("/chat/completions", addresses.chat_completions, methods=POST),
    Route("/models", models.listing, methods=GET),
]
OLLAMA = [
    Route("/api/chat", ollama_answers.chat, methods=POST),
    Route("/api/generate", ollama_answers.generate, methods=POST),
    Route("/api/tags", ollama_models.tags, methods=GET),
    Route("/api/ps", ollama_models.running, methods=GET),
    Route("/api/show", ollama_models.show, methods=POST),
    Route("/api/embed", embeddings.embed, methods=POST),
    Route("/api/embeddings", embeddings.embed_older, methods=POST),
    Route("/api/version", ollama_models.version, methods=GET),
    *(Route(path, elsewhere.refuse, methods=[*POST, "DELETE"]) for path in elsewhere.INSTEAD),
]


def application(shelf: Shelf, settings: Settings) -> Starlette:
    """An ASGI application that answers with the models of the shelf; they are closed when it ends."""
    desk = Desk(shelf, settings)
    desk.observer = observer = metrics.Metrics()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            desk.close()

    app = Starlette(
        routes=[*OPENAI, *LLAMA_CPP, *OLLAMA, *page.ROUTES],
        middleware=[Middleware(Gate, settings), Middleware(Intake, settings)],
        exception_handlers={HTTPException: not_there, **dict.fromkeys((Problem, LocalInferError, Exception), refused)},
        lifespan=lifespan,
    )
    app.state.desk, app.state.metrics = desk, observer
    app.state.defaults = defaults
    return app


def defaults(model: "Model") -> dict[str, Any]:
    """How the model samples unless a request says otherwise."""
    return {name: value for name, value in asdict(model.options).items() if FLAGS[name].section == "sampling"}


async def not_there(request: Request, error: Exception) -> Response:
    """An address or a method that there is not."""
    assert isinstance(error, HTTPException)
    return in_words_of(request, Problem(error.status_code, f"{request.method} {request.url.path}: {error.detail}"))


async def refused(request: Request, error: Exception) -> Response:
    return in_words_of(request, problem_of(error))


def in_words_of(request: Request, problem: Problem) -> Response:
    """Ollama's clients expect a text where OpenAI's expect an object."""
    is_ollama = request.url.path.startswith("/api/")
    body = {"error": problem.error["message"] if is_ollama else problem.error}
    headers = {"retry-after": "1"} if problem.status == 503 else {}
    return Json(body, problem.status, headers=headers)
