"""Eight conversations for comparing chat template renderings, and variants of their content format."""

import json
from typing import Any

Conversation = dict[str, Any]

QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
SYSTEM = {"role": "system", "content": "You answer in one sentence."}
ANSWER = {"role": "assistant", "content": 'It is 21 degrees, "mostly" <sunny> & dry.\n'}
THANKS = {"role": "user", "content": "  Thanks!\n\nAnd in Zürich? 👋 "}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{
        "id": "call00001", "type": "function",
        "function": {"name": "get_weather", "arguments": {"city": "Paris", "days": 2, "units": ["C", "<F>"]}},
    }],
}  # fmt: skip
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": '{"degrees": 21}'}
REASONING = {**ANSWER, "reasoning_content": "They ask for Paris.\nI know that."}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'The weather of a city, for <some> days & "more".',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Where?"},
                    "days": {"type": "integer", "description": "How long?", "default": 1},
                    "units": {"type": "array", "items": {"type": "string", "enum": ["C", "<F>"]}},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now", "description": "The time, in Zürich.", "parameters": {"type": "object", "properties": {}},
        },
    },
]  # fmt: skip


def in_parts(conversation: Conversation) -> Conversation:
    """Return the conversation with contents as lists of one text part."""
    return with_contents(conversation, lambda text: [{"type": "text", "text": text}])


def in_texts(conversation: Conversation) -> Conversation:
    """Return the conversation with contents as strings; a list becomes the text of its parts."""
    return with_contents(conversation, lambda content: content[0]["text"] if isinstance(content, list) else content)


def with_contents(conversation: Conversation, change: Any) -> Conversation:
    messages = [{**message, "content": change(message["content"])} for message in conversation["messages"]]
    return {**conversation, "messages": messages}


def with_json_arguments(conversation: Conversation) -> Conversation:
    """Return the conversation with tool-call arguments as JSON strings, as in OpenAI's API."""
    messages = json.loads(json.dumps(conversation["messages"]))
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return {**conversation, "messages": messages}


CONVERSATIONS: dict[str, Conversation] = {
    "plain": {"messages": [QUESTION]},
    "system": {"messages": [SYSTEM, QUESTION]},
    "turns": {"messages": [QUESTION, ANSWER, THANKS]},
    "tools": {"messages": [QUESTION], "tools": TOOLS},
    "calls": {"messages": [QUESTION, CALL, RESULT, ANSWER, THANKS], "tools": TOOLS},
    "thinking": {"messages": [QUESTION, REASONING, THANKS], "template_kwargs": {"enable_thinking": True}},
    "parts": in_parts({"messages": [QUESTION, ANSWER, THANKS]}),
    "finished": {"messages": [QUESTION, ANSWER], "add_generation_prompt": False},
}

ALL: dict[str, Conversation] = CONVERSATIONS | {
    "documents": {"messages": [QUESTION], "documents": [{"title": "Straße", "text": "<b>"}, {"text": ""}]},
    "nothing": {"messages": [{"role": "user", "content": "", "name": None, "tool_calls": None}], "tools": []},
    "no reasoning": {"messages": [QUESTION], "template_kwargs": {"enable_thinking": False, "bos_token": "B"}},
    "other reasoning": {"messages": [
        {"role": "assistant", "content": "a</think>\n\nb", "thinking": "first", "reasoning": "second"},
        {"role": "assistant", "content": "c", "reasoning": None, "thinking": ""},
    ]},
    "open": {"messages": [QUESTION, ANSWER], "continue_final_message": True},
    "open, in parts": in_parts({"messages": [QUESTION, ANSWER]}) | {"continue_final_message": True},
}  # fmt: skip
