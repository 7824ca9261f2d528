"""`/rerank`: documents in the order of their relevance to a query, in the formats of Jina and of Hugging Face's TEI.

Scores are the model's own, as in llama.cpp, unless `raw_scores` (TEI's field) is false: then they are between 0 and 1.
"""

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.http.api_errors import field_error
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.requests.request_fields import Fields, get, get_int, read_json_object

if TYPE_CHECKING:
    from localinfer.embedding.reranking import RankedDocument

MAX_DOCUMENTS = 2048  # per request


async def rerank(request: Request) -> Response:
    """`/rerank`: with `documents` in Jina's format, with `texts` in TEI's."""
    fields = await read_json_object(request)
    is_tei = "documents" not in fields and "texts" in fields
    documents = parse_documents(fields, "texts" if is_tei else "documents")
    if not (query := get(fields, "query", str, "")):
        raise field_error("query", "must be a text")
    top = get_int(fields, "top_n", len(documents), 1, 2**31 - 1)
    truncate = get(fields, "truncate", bool, False)
    instruction, sigmoid = get(fields, "instruction", str, ""), not get(fields, "raw_scores", bool, True)
    dispatcher = request.app.state.dispatcher
    async with dispatcher.lease(get(fields, "model", str, "") or None) as lease:
        model = lease.model
        ranked = await lease.slot.call(lambda: model.rerank(
            query, documents, instruction=instruction, sigmoid=sigmoid, truncate=truncate))  # fmt: skip
        n_tokens = await lease.slot.call(lambda: model.count_rerank_tokens(query, documents, instruction))
    with_text = get(fields, "return_text", bool, get(fields, "return_documents", bool, False))
    results = [result(each, is_tei=is_tei, with_text=with_text) for each in ranked[:top]]
    if is_tei:
        return JSONResponse(results)
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return JSONResponse({"model": lease.name, "object": "list", "usage": usage, "results": results})


def parse_documents(fields: Fields, name: str) -> list[str]:
    """Return the documents of a request, each a text or an object with a text. Raises APIError (400)."""
    given = get(fields, name, list, [])
    documents = [each.get("text") if isinstance(each, dict) else each for each in given]
    texts = [each for each in documents if isinstance(each, str)]
    if not 0 < len(documents) <= MAX_DOCUMENTS or len(texts) < len(documents):
        raise field_error(name, f"must be a list of up to {MAX_DOCUMENTS} texts")
    return texts


def result(ranked: "RankedDocument", *, is_tei: bool, with_text: bool) -> dict[str, Any]:
    if is_tei:
        return {"index": ranked.index, "score": ranked.score} | ({"text": ranked.document} if with_text else {})
    document = {"document": {"text": ranked.document}} if with_text else {}
    return {"index": ranked.index, "relevance_score": ranked.score} | document
