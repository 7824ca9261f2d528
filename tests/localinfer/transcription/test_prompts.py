"""What each family is asked, and how its answer is read."""

from typing import Any

import numpy as np
import pytest

from localinfer.errors import UsageError
from localinfer.multimodal.media import Sound
from localinfer.transcription.languages import code_of_name, language_code
from localinfer.transcription.prompts import prompt_for

SOUND = Sound(np.zeros(1, np.float32))


class RecordingModel:
    """Stands for a model: keeps what it is asked."""

    def tokenize(self, text: str, **keywords: Any) -> str:
        assert keywords == {"media": [SOUND], "parse_special": True}
        return text

    def stream(self, prompt: str, **options: Any) -> tuple[str, Any]:
        return prompt, options

    def stream_chat(self, messages: list[dict[str, Any]], **options: Any) -> tuple[list[dict[str, Any]], Any]:
        return messages, options


def asked(projector_type: str, language: str) -> Any:
    return prompt_for(projector_type).start(RecordingModel(), SOUND, language, {"n_predict": 7})  # type: ignore[arg-type]


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} if text else {"type": "audio", "audio": SOUND} for text in texts]


def test_voxtral_has_a_transcription_mode() -> None:
    assert asked("voxtral", "") == ("[INST]<__media__>[/INST][TRANSCRIBE]", {"n_predict": 7})
    assert asked("voxtral", "de")[0] == "[INST]<__media__>[/INST]lang:de[TRANSCRIBE]"


def test_qwen3_asr_begins_its_answer_with_the_language() -> None:
    messages, options = asked("qwen3a", "")
    assert messages == [{"role": "user", "content": parts("")}]
    assert not options["continue_final_message"]
    messages, options = asked("qwen3a", "de")
    assert messages[1] == {"role": "assistant", "content": "language German<asr_text>"}
    assert options == {"parse_special": True, "continue_final_message": True, "n_predict": 7}


@pytest.mark.parametrize(
    ("answer", "text", "language"),
    [
        ("language English<asr_text> Hello.", "Hello.", "en"),
        ("Hallo.", "Hallo.", ""),
        ("language None<asr_text>", "", ""),
    ],
)
def test_the_language_of_qwen3_asr_is_not_part_of_the_text(answer: str, text: str, language: str) -> None:
    assert prompt_for("qwen3a").read(answer) == (text, language)


def test_ultravox_reads_the_sound_last() -> None:
    assert asked("ultravox", "")[0] == [{"role": "user", "content": parts("Transcribe\n", "")}]


def test_lfm2_audio_has_a_system_prompt() -> None:
    system, user = asked("lfm2a", "de")[0]
    assert system == {"role": "system", "content": "Perform ASR."}
    assert user == {"role": "user", "content": parts("")}


def test_granite_is_asked_as_its_card_says() -> None:
    [message] = asked("granite_speech", "")[0]
    assert message["content"] == parts("", "can you transcribe the speech into a written format?")


def test_other_models_are_instructed() -> None:
    [message] = asked("qwen2a", "fr")[0]
    assert message["content"] == parts("", "Transcribe this French audio. Answer with the transcript only.")


def test_languages_have_codes_and_names() -> None:
    assert [language_code(each) for each in ("auto", "DE", "german", " yue ")] == ["", "de", "de", "yue"]
    assert (code_of_name("Portuguese"), code_of_name("Klingon")) == ("pt", "")
    with pytest.raises(UsageError, match="--language: 'tlh' is not known; use auto, an English name, or one of ar, bg"):
        language_code("tlh")
