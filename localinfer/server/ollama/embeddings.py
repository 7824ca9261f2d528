"""`/api/embed`, and the deprecated `/api/embeddings`."""

import asyncio
from time import perf_counter_ns

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.http.json_output import dump_json, dump_list
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.ollama.keep_alive import parse_keep_alive
from localinfer.server.openai.embeddings import embed_inputs
from localinfer.server.openai.routes import get_dispatcher
from localinfer.server.requests.mixed_prompts import MixedPrompt, parse_prompts
from localinfer.server.requests.request_fields import get, read_json_object


async def embed(request: Request) -> Response:
    """`/api/embed`: the embeddings of one or several texts, which are cut to the context unless `truncate` is false."""
    start, fields = perf_counter_ns(), await read_json_object(request)
    dispatcher, seconds = get_dispatcher(request), parse_keep_alive(fields)
    prompts = parse_prompts(fields.get("input"), "input")
    name, vectors, n_tokens = await embed_inputs(fields, prompts, dispatcher, truncate=True)
    dispatcher.keep_alive(name, seconds)
    counts = {"total_duration": perf_counter_ns() - start, "load_duration": 0, "prompt_eval_count": n_tokens}
    encoded = await asyncio.to_thread(dump_list, (vector.tolist() for vector in vectors))
    return JSONResponse(b'{"model":%b,"embeddings":%b,%b' % (dump_json(name), encoded, dump_json(counts)[1:]))


async def embed_legacy(request: Request) -> Response:
    """`/api/embeddings`: the embedding of one text."""
    fields = await read_json_object(request)
    dispatcher, seconds = get_dispatcher(request), parse_keep_alive(fields)
    prompts = [MixedPrompt((get(fields, "prompt", str, ""),))]
    name, [vector], _ = await embed_inputs(fields, prompts, dispatcher, truncate=True)
    dispatcher.keep_alive(name, seconds)
    return JSONResponse({"embedding": vector.tolist()})
