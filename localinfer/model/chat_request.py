"""A request for the answer to a conversation, made of the keywords of `Model.stream_chat`."""

from collections.abc import Sequence
from typing import NamedTuple, Self

from localinfer.chat_template.conversation import Conversation, Message
from localinfer.generation.token_selection import SamplerFunction
from localinfer.generation.tool_calls.tool_choice import ToolChoice
from localinfer.model.text_generation import ChatKeywords
from localinfer.options.keywords import RunKeywords


class ChatRequest(NamedTuple):
    """The conversation to answer, how the model may call its tools, and how tokens are chosen."""

    conversation: Conversation
    options: RunKeywords
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    stream_arguments: bool
    parse_special: bool
    prefix_ids: Sequence[int]  # of the answer
    sampler: SamplerFunction | None

    @classmethod
    def from_keywords(cls, messages: Sequence[Message], keywords: ChatKeywords) -> Self:
        """Return the request for these messages. Raises UsageError for an invalid conversation or choice."""
        options = keywords.copy()
        tools, tool_choice = options.pop("tools", None), ToolChoice.parse(options.pop("tool_choice", "auto"))
        conversation = Conversation(
            messages=messages,
            tools=tools if tool_choice.mode != "none" else None,
            documents=options.pop("documents", None),
            template_kwargs=options.pop("template_kwargs", None) or {},
            add_generation_prompt=options.pop("add_generation_prompt", True),
            continue_final_message=options.pop("continue_final_message", False),
        )
        return cls(
            conversation,
            tool_choice=tool_choice,
            parallel_tool_calls=options.pop("parallel_tool_calls", True),
            stream_arguments=options.pop("stream_arguments", False),
            parse_special=options.pop("parse_special", False),
            prefix_ids=options.pop("prefix_ids", ()),
            sampler=options.pop("sampler", None),
            options=options,
        )
