"""JSON encoding of events."""

import pytest

from localinfer.server.http.json_output import Event, EventTemplate, dump_json


@pytest.mark.parametrize("text", ["", "Hello", '"\\\n\t\0', "ä€🙂", "\ud800", "data: {}\n\n"])
def test_template_renders_the_whole_event(text: str) -> None:
    def event(text: str) -> Event:
        return {"id": 'a"b', "choices": [{"index": 0, "text": text, "logprobs": None}], "usage": None}

    assert EventTemplate(event).render(text) == dump_json(event(text))
