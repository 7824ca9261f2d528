"""Token ids of earlier answers, which are added only to unchanged messages."""

from typing import Any

from localinfer.server.answer_memory import LIMIT, AnswerMemory


def message(call_id: str, a: int = 1, **more: Any) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "add", "arguments": {"a": a}}}
    return {"role": "assistant", "content": "", "tool_calls": [call], **more}


def test_only_unchanged_answers_of_the_model_get_ids() -> None:
    memory = AnswerMemory()
    memory.add("m", "x", message("call00000", ids=[1, 2], reasoning_ids=[3]))
    user = {"role": "user", "content": "Hello"}
    assert memory.with_token_ids("m", [user, message("x")]) == [user, message("x", ids=[1, 2], reasoning_ids=[3])]
    for name, sent in ("other", message("x")), ("m", message("x", a=2)), ("m", message("y")):
        assert memory.with_token_ids(name, [sent]) == [sent]


def test_the_least_recently_used_answer_is_forgotten() -> None:
    memory = AnswerMemory()
    for number in range(LIMIT):
        memory.add("m", str(number), message("", ids=[number]))
    memory.with_token_ids("m", [message("0")])
    memory.add("m", "new", message("", ids=[7]))
    assert "ids" in memory.with_token_ids("m", [message("0")])[0]
    assert "ids" not in memory.with_token_ids("m", [message("1")])[0]
