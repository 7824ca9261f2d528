"""Results of tool calls as text for the model, of limited size."""

import json
from collections.abc import Iterator

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)

RESULT_LIMIT = 32_000  # characters


def result_text(result: CallToolResult) -> str:
    """Return the text of a result. Images and other content that is no text are named."""
    parts = [part for block in result.content for part in block_text(block)]
    if not any(isinstance(block, TextContent) for block in result.content) and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = shortened("\n".join(parts))
    return f"error: {text or 'the tool reports an error'}" if result.is_error else text


def block_text(block: object) -> Iterator[str]:
    match block:
        case TextContent(text=text):
            yield text
        case ImageContent(mime_type=kind) | AudioContent(mime_type=kind):
            yield f"[{kind}: images and audio are not supported]"
        case ResourceLink(uri=uri):
            yield f"[resource {uri}]"
        case EmbeddedResource(resource=BlobResourceContents() as resource):
            yield f"[resource {resource.uri}, {resource.mime_type or 'unknown type'}: not a text]"
        case EmbeddedResource(resource=resource):
            yield f"[resource {resource.uri}]\n{getattr(resource, 'text', '')}"


def shortened(text: str) -> str:
    """Return the text, or its beginning if it is longer than RESULT_LIMIT."""
    if len(text) <= RESULT_LIMIT:
        return text
    return f"{text[:RESULT_LIMIT]}\n[truncated: {len(text):,} characters in total]"
