"""The languages of speech that can be named: by the code of ISO 639-1, or by the English name."""

from localinfer.errors import UsageError
from localinfer.escaping import printable

LANGUAGES = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech", "da": "Danish", "de": "German",
    "el": "Greek", "en": "English", "es": "Spanish", "et": "Estonian", "fa": "Persian", "fi": "Finnish",
    "fil": "Filipino", "fr": "French", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian",
    "id": "Indonesian", "it": "Italian", "ja": "Japanese", "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian",
    "mk": "Macedonian", "ms": "Malay", "nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese",
    "ro": "Romanian", "ru": "Russian", "sk": "Slovak", "sl": "Slovenian", "sr": "Serbian", "sv": "Swedish",
    "sw": "Swahili", "ta": "Tamil", "te": "Telugu", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu",
    "vi": "Vietnamese", "yue": "Cantonese", "zh": "Chinese",
}  # fmt: skip
AUTO = "auto"


def language_code(text: str) -> str:
    """Return the code of a language; "" for "auto". Raises UsageError for an unknown one."""
    wanted = text.strip().lower()
    if wanted in (AUTO, ""):
        return ""
    for code, name in LANGUAGES.items():
        if wanted in (code, name.lower()):
            return code
    known = ", ".join(LANGUAGES)
    raise UsageError(f"--language: {printable(text, 40)!r} is not known; use auto, an English name, or one of {known}")


def code_of_name(name: str) -> str:
    """Return the code of a language that a model names, or "" if it is unknown."""
    return next((code for code, each in LANGUAGES.items() if each.lower() == name.strip().lower()), "")
