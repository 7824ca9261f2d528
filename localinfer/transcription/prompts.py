"""What each family of models is asked to transcribe, as its model card says, and the text in its answer."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from localinfer.chat_template.placeholders import MEDIA_MARKER
from localinfer.multimodal.media import Sound
from localinfer.transcription.languages import LANGUAGES, code_of_name

if TYPE_CHECKING:
    from localinfer.generation.result import GenerationStream
    from localinfer.model.model import Model

ASR_TEXT = "<asr_text>"  # Qwen3-ASR writes the language before it


class Transcript(NamedTuple):
    """The text of an answer, and the code of the language if the answer names it."""

    text: str
    language: str = ""


Start: TypeAlias = "Callable[[Model, Sound, str, dict[str, object]], GenerationStream]"
Read: TypeAlias = Callable[[str], Transcript]


class SpeechPrompt(NamedTuple):
    """How a family is asked, and how its answer is read."""

    start: Start
    read: Read


def plain(answer: str) -> Transcript:
    """Return an answer that is the text alone."""
    return Transcript(answer.strip())


def start_voxtral(model: "Model", sound: Sound, language: str, options: dict[str, object]) -> "GenerationStream":
    """Ask Voxtral in its transcription mode, which has no instruction."""
    named = f"lang:{language}" if language else ""
    text = f"[INST]{MEDIA_MARKER}[/INST]{named}[TRANSCRIBE]"
    return model.stream(model.tokenize(text, media=[sound], parse_special=True), **options)  # type: ignore[arg-type]


def start_qwen3(model: "Model", sound: Sound, language: str, options: dict[str, object]) -> "GenerationStream":
    """Give Qwen3-ASR the sound alone. A known language is the beginning of the answer."""
    messages: list[dict[str, object]] = [{"role": "user", "content": [{"type": "audio", "audio": sound}]}]
    if language:
        messages.append({"role": "assistant", "content": f"language {LANGUAGES[language]}{ASR_TEXT}"})
    keywords = {"parse_special": True, "continue_final_message": bool(language), **options}
    return model.stream_chat(messages, **keywords)  # type: ignore[arg-type]


def start_lfm2(model: "Model", sound: Sound, language: str, options: dict[str, object]) -> "GenerationStream":  # noqa: ARG001
    """Ask LFM2-Audio for text with the system prompt of speech recognition, which names no language."""
    user: dict[str, object] = {"role": "user", "content": [{"type": "audio", "audio": sound}]}
    return model.stream_chat([{"role": "system", "content": "Perform ASR."}, user], **options)  # type: ignore[arg-type]


def read_qwen3(answer: str) -> Transcript:
    """Return the text behind the language: `language English<asr_text>Hello`."""
    header, separator, text = answer.rpartition(ASR_TEXT)
    return Transcript(text.strip(), code_of_name(header.strip().removeprefix("language ")) if separator else "")


def instructed(with_language: str, without: str, *, sound_first: bool = True) -> SpeechPrompt:
    """Return the prompt of a chat model: an instruction beside the sound. `with_language` has {language}."""

    def start(model: "Model", sound: Sound, language: str, options: dict[str, object]) -> "GenerationStream":
        text = with_language.format(language=LANGUAGES[language]) if language else without
        parts: list[dict[str, object]] = [{"type": "audio", "audio": sound}, {"type": "text", "text": text}]
        messages = [{"role": "user", "content": parts if sound_first else parts[::-1]}]
        return model.stream_chat(messages, **options)  # type: ignore[arg-type]

    return SpeechPrompt(start, plain)


PROMPTS = {
    "voxtral": SpeechPrompt(start_voxtral, plain),
    "qwen3a": SpeechPrompt(start_qwen3, read_qwen3),
    "granite_speech": instructed(
        "can you transcribe the {language} speech into a written format?",
        "can you transcribe the speech into a written format?",
    ),
    "lfm2a": SpeechPrompt(start_lfm2, plain),
    "ultravox": instructed("Transcribe the {language} speech\n", "Transcribe\n", sound_first=False),
}
DEFAULT = instructed(
    "Transcribe this {language} audio. Answer with the transcript only.",
    "Transcribe this audio. Answer with the transcript only.",
)


def prompt_for(projector_type: str) -> SpeechPrompt:
    """Return the prompt for models with a projector of this type."""
    return PROMPTS.get(projector_type, DEFAULT)
