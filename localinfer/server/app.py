"""The ASGI application: all routes, the middleware and the error handlers."""

import asyncio
import gc
import importlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from localinfer.errors import LocalInferError
from localinfer.server import metrics
from localinfer.server.anthropic import models as anthropic_models
from localinfer.server.anthropic import routes as anthropic_routes
from localinfer.server.auth import AuthMiddleware
from localinfer.server.dispatcher import Dispatcher
from localinfer.server.error_responses import error_response, uses_anthropic_api
from localinfer.server.http import web_ui
from localinfer.server.http.api_errors import APIError, to_api_error
from localinfer.server.llama_cpp import (
    completion,
    downloads,
    infill,
    lora_adapters,
    properties,
    reranking,
    router,
    slots,
    tokenization,
)
from localinfer.server.llama_cpp import embeddings as llama_cpp_embeddings
from localinfer.server.models.model_cache import ModelCache, ServedModel
from localinfer.server.ollama import chat as ollama_chat
from localinfer.server.ollama import embeddings, managing, pulling, unsupported
from localinfer.server.ollama import models as ollama_models
from localinfer.server.openai import models, routes
from localinfer.server.prompt_history import PromptHistory
from localinfer.server.request_body import RequestBodyMiddleware
from localinfer.server.requests.answer_memory import AnswerMemory
from localinfer.server.requests.model_query import ModelQueryMiddleware
from localinfer.server.settings import Settings
from localinfer.server.startup import LoadingMiddleware, Startup

RERANK_PATHS = ("/rerank", "/v1/rerank", "/reranking", "/v1/reranking")
POLL_SECONDS = 0.1
CANCEL_SECONDS = 0.5  # that cancelled requests have to end when the server ends
FIRST_REQUEST_MODULES = (
    "localinfer.generation.tool_calls.tool_choice", "localinfer.model.media_encoder",
    "localinfer.runtime.scheduling.scheduled_engine",
)  # fmt: skip
GET, POST = ["GET"], ["POST"]
Endpoint = Callable[[Request], Awaitable[Response]]


def by_api(openai: Endpoint, anthropic: Endpoint) -> Endpoint:
    """Return an endpoint that both APIs have at the same path."""

    async def respond(request: Request) -> Response:
        return await (anthropic if uses_anthropic_api(request.scope) else openai)(request)

    return respond


list_models = by_api(router.list_models, anthropic_models.list_models)
retrieve_model = by_api(models.retrieve_model, anthropic_models.retrieve_model)

OPENAI_ROUTES = [
    Route("/v1/chat/completions", routes.chat_completions, methods=POST),
    Route("/v1/completions", routes.completions, methods=POST),
    Route("/v1/responses", routes.responses, methods=POST),
    Route("/v1/embeddings", routes.embeddings, methods=POST),
    Route("/v1/audio/transcriptions", routes.transcriptions, methods=POST),
    Route("/v1/models", list_models, methods=GET),
    Route("/v1/models/{name:path}", retrieve_model, methods=GET),
]
ANTHROPIC_ROUTES = [
    Route("/v1/messages", anthropic_routes.messages, methods=POST),
    Route("/v1/messages/count_tokens", anthropic_routes.count_tokens, methods=POST),
]
LLAMA_CPP_ROUTES = [
    *(Route(path, properties.health, methods=GET) for path in ("/health", "/v1/health")),
    Route("/props", properties.props, methods=GET),
    Route("/props", properties.change_props, methods=POST),
    Route("/metrics", metrics.metrics_endpoint, methods=GET),
    Route("/slots", slots.slots, methods=GET),
    Route("/slots/{number}", slots.act_on_slot, methods=POST),
    Route("/lora-adapters", lora_adapters.list_adapters, methods=GET),
    Route("/lora-adapters", lora_adapters.set_scales, methods=POST),
    Route("/tokenize", tokenization.tokenize, methods=POST),
    Route("/detokenize", tokenization.detokenize, methods=POST),
    Route("/apply-template", tokenization.apply_template, methods=POST),
    *(Route(path, completion.completion, methods=POST) for path in ("/completion", "/completions")),
    Route("/infill", infill.infill, methods=POST),
    *(Route(path, llama_cpp_embeddings.embeddings, methods=POST) for path in ("/embedding", "/embeddings")),
    *(Route(path, reranking.rerank, methods=POST) for path in RERANK_PATHS),
    Route("/chat/completions", routes.chat_completions, methods=POST),
    *(Route(f"{prefix}/chat/completions/input_tokens", tokenization.count_chat_tokens, methods=POST)
      for prefix in ("", "/v1")),
    Route("/responses", routes.responses, methods=POST),
    Route("/audio/transcriptions", routes.transcriptions, methods=POST),
    *(Route(f"{prefix}/responses/input_tokens", routes.count_input_tokens, methods=POST) for prefix in ("", "/v1")),
    Route("/models", router.list_models, methods=GET),
    Route("/models", downloads.download_model, methods=POST),
    Route("/models", downloads.delete_model, methods=["DELETE"]),
    Route("/models/load", router.load_model, methods=POST),
    Route("/models/unload", router.unload_model, methods=POST),
    Route("/models/sse", router.model_events, methods=GET),
]  # fmt: skip
OLLAMA_ROUTES = [
    Route("/api/chat", ollama_chat.chat, methods=POST),
    Route("/api/generate", ollama_chat.generate, methods=POST),
    Route("/api/tags", ollama_models.tags, methods=GET),
    Route("/api/ps", ollama_models.running, methods=GET),
    Route("/api/show", ollama_models.show, methods=POST),
    Route("/api/embed", embeddings.embed, methods=POST),
    Route("/api/embeddings", embeddings.embed_legacy, methods=POST),
    Route("/api/version", ollama_models.version, methods=GET),
    Route("/api/pull", pulling.pull_model, methods=POST),
    Route("/api/delete", managing.delete, methods=["DELETE", *POST]),
    Route("/api/copy", managing.copy, methods=POST),
    Route("/api/create", managing.create, methods=POST),
    Route("/api/push", unsupported.refuse_push, methods=POST),
    Route("/api/blobs/{digest}", unsupported.refuse_blob, methods=[*POST, *GET]),
]


def import_rest() -> None:
    """Import what the first requests need. In the event loop, this would delay the answers to all others."""
    for name in FIRST_REQUEST_MODULES:
        importlib.import_module(name)


def create_app(model_cache: ModelCache, settings: Settings, startup: Startup | None = None) -> Starlette:
    """Return an ASGI application that serves the models of the cache. Its lifespan closes them at shutdown. Until
    `startup` has loaded a model, it answers with status 503.
    """
    dispatcher, startup = Dispatcher(model_cache, settings), startup or Startup()
    dispatcher.observer = observer = metrics.Metrics()
    dispatcher.prompts, dispatcher.answers = PromptHistory(), AnswerMemory()
    dispatcher.describe = properties.describe

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        sleeper = asyncio.create_task(sleep_after_startup())
        threading.Thread(target=import_rest, name="imports", daemon=True).start()
        if not startup.is_loading:  # nothing of a model exists that the garbage collection must find
            gc.collect()
            gc.freeze()  # the collection after each unloading holds the GIL a third as long
        for served in model_cache.catalog.all():
            if served.load_on_startup and not model_cache.catalog.is_single:
                dispatcher.load(served)
        try:
            yield
        finally:
            sleeper.cancel()
            if app.state.running:  # uvicorn has cancelled them, but their slots must still end what they do
                await asyncio.wait(app.state.running, timeout=CANCEL_SECONDS)
            app.state.downloads.close()
            dispatcher.close()

    async def sleep_after_startup() -> None:
        """Let a model that nobody requests sleep, too."""
        while startup.is_loading:
            await asyncio.sleep(POLL_SECONDS)
        for name, model in dispatcher.model_cache.loaded.items():
            properties.describe(ServedModel(name, name), model, dispatcher)
            dispatcher.idle_timers.sleep_when_idle(dispatcher.models.states.known(name))

    app = Starlette(
        routes=[
            *OPENAI_ROUTES, *ANTHROPIC_ROUTES, *LLAMA_CPP_ROUTES, *OLLAMA_ROUTES,
            *(web_ui.ROUTES if settings.has_web_ui else ()),
        ],
        middleware=[
            Middleware(kind, settings)
            for kind in (AuthMiddleware, LoadingMiddleware, ModelQueryMiddleware, RequestBodyMiddleware)
        ],
        exception_handlers={
            HTTPException: handle_http_exception,
            **dict.fromkeys((APIError, LocalInferError, Exception), handle_error),
        },
        lifespan=lifespan,
    )
    app.state.dispatcher, app.state.metrics = dispatcher, observer
    app.state.running = set()  # the tasks of requests
    app.state.startup, app.state.downloads = startup, downloads.Downloads(dispatcher.models.events)
    return app


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Handle an unknown route or a method that the route does not allow."""
    assert isinstance(error, HTTPException)
    problem = APIError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return error_response(request.scope, problem)


async def handle_error(request: Request, error: Exception) -> Response:
    """Handle every other exception."""
    return error_response(request.scope, to_api_error(error))
