"""The inputs of a generation: a text, token ids or a conversation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from localinfer.errors import UsageError
from localinfer.multimodal.access import INLINE_ONLY, MediaAccess, decode_base64
from localinfer.server.requests.tool_fields import ToolFields
from localinfer.server.slots import stop_prompt_if_cancelled

if TYPE_CHECKING:
    from localinfer.chat_template.prompt import Prompt as RenderedPrompt
    from localinfer.generation.result import GenerationStream
    from localinfer.model import Model

MAX_PROMPT_CHARS = 4 << 20  # also of all messages together
Message = Mapping[str, object]
Options = Mapping[str, Any]  # fields of `localinfer.options.Options`, already validated


class Prompt(Protocol):
    """The input of a generation."""

    @property
    def field_of(self) -> Mapping[str, str]:
        """The field of the request for each name by which errors call a constraint."""

    def begin(self, model: "Model", options: Options) -> "GenerationStream":
        """Start the generation. Raises what `Model.generate` or `Model.chat` raises, before the first piece."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A text to continue, or its token ids. With `parse_special`, the texts of control tokens become these tokens.
    `images` are base64. `field_of` is what `to_api_error` needs.
    """

    prompt: str | Sequence[int]
    parse_special: bool = False
    field_of: Mapping[str, str] = field(default_factory=dict)
    images: Sequence[str] = ()

    def begin(self, model: "Model", options: Options) -> "GenerationStream":
        if isinstance(self.prompt, str) and len(self.prompt) > MAX_PROMPT_CHARS:
            raise UsageError(f"prompt: {len(self.prompt)} characters (limit {MAX_PROMPT_CHARS})")
        if isinstance(self.prompt, str) and (self.parse_special or self.images):
            images = [decode_base64(image, f"images[{index}]") for index, image in enumerate(self.images)]
            ids = model.tokenize(
                self.prompt, parse_special=self.parse_special, media=images, on_wait=stop_prompt_if_cancelled
            )
            return model.stream(ids, **options)
        return model.stream(self.prompt, **options)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A list of messages and their chat template options, as `Model.chat` accepts them. `access` limits the files and
    addresses of their images and sounds. `field_of` is what `to_api_error` needs.
    """

    messages: Sequence[Message]
    tools: ToolFields = field(default_factory=ToolFields)
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    continue_final_message: bool = False
    add_generation_prompt: bool = True
    field_of: Mapping[str, str] = field(default_factory=dict)
    access: MediaAccess = INLINE_ONLY

    def begin(self, model: "Model", options: Options) -> "GenerationStream":
        require_size(self.messages)
        return model.stream_chat(
            self.messages, template_kwargs=self.template_kwargs,
            continue_final_message=self.continue_final_message, add_generation_prompt=self.add_generation_prompt,
            media_access=self.access, **self.tools.keywords, **options)  # fmt: skip

    def render(self, model: "Model", options: Options, *, counts_media: bool = True) -> "RenderedPrompt":
        """Return the prompt that `begin` evaluates. With `counts_media`, its images and sounds are not encoded, and its
        ids there are zeros.
        """
        require_size(self.messages)
        return model.render(
            self.messages, tools=self.tools.tools, template_kwargs=self.template_kwargs,
            continue_final_message=self.continue_final_message, add_generation_prompt=self.add_generation_prompt,
            media_access=self.access, counts_media=counts_media, **options)  # fmt: skip


def require_size(messages: Sequence[object]) -> None:
    """Raise UsageError if the texts of the messages together are longer than a prompt may be. The chat template would
    fail with them, and the response would have status 500 instead of 400. Messages that are no objects are refused
    later."""
    contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, Mapping)]
    texts = [*contents, *(part.get("text") for part in parts)]
    n_chars = sum(len(text) for text in texts if isinstance(text, str))
    if n_chars > MAX_PROMPT_CHARS:
        raise UsageError(f"messages: {n_chars} characters (limit {MAX_PROMPT_CHARS})")
