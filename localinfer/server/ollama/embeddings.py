"""`/api/embed`, and the older `/api/embeddings`."""

from time import perf_counter_ns

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.fields import body_of, get
from localinfer.server.ollama.keeping import kept_for
from localinfer.server.openai.embeddings import embedded, texts_of
from localinfer.server.streams import Json


async def embed(request: Request) -> Response:
    began, fields = perf_counter_ns(), await body_of(request)
    desk, seconds = request.app.state.desk, kept_for(fields)
    name, vectors, n_tokens = await embedded(fields, texts_of(fields, "input"), desk)
    desk.keep(name, seconds)
    counts = {"total_duration": perf_counter_ns() - began, "load_duration": 0, "prompt_eval_count": n_tokens}
    return Json({"model": name, "embeddings": [vector.tolist() for vector in vectors]} | counts)


async def embed_older(request: Request) -> Response:
    fields = await body_of(request)
    desk, seconds = request.app.state.desk, kept_for(fields)
    name, [vector], _ = await embedded(fields, [get(fields, "prompt", str, "")], desk)
    desk.keep(name, seconds)
    return Json({"embedding": vector.tolist()})
