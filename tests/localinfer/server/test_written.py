"""Events as they are sent."""

import pytest

from localinfer.server.written import Event, Pattern, dumped


@pytest.mark.parametrize("text", ["", "Hello", '"\\\n\t\0', "ä€🙂", "\ud800", "data: {}\n\n"])
def test_a_pattern_is_the_whole_event(text: str) -> None:
    def event(text: str) -> Event:
        return {"id": 'a"b', "choices": [{"index": 0, "text": text, "logprobs": None}], "usage": None}

    assert Pattern(event).filled(text) == dumped(event(text))
