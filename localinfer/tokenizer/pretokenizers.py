"""How byte-level BPE vocabularies cut text into words before they merge: what `tokenizer.ggml.pre` names.

Facts only, as tables. A pre-tokenizer is a list of regular expressions, applied one after another: what an
expression matches becomes a piece of its own, and so does what lies between two matches; the next expression
then cuts every piece further. They are written for Oniguruma, and \\s, \\p{L}, ... mean what they mean there.

Every row gives llama.cpp's words on random text and on the code points of Unicode 14; of the letters that were
added since, Oniguruma knows some that llama.cpp does not.
"""

from typing import NamedTuple


class PreTokenizer(NamedTuple):
    """`ignore_merges`: a word that is a token is not merged from its bytes. `add_bos`: the key's default."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


# An English contraction, in any case. (?i:'s) would not do: it also matches the long s, U+017F.
CONTRACTION = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"

SPACES = r"\s+(?!\S)|\s+"  # the last space of a run belongs to the word that follows
LINES = rf"\s*[\r\n]+|{SPACES}"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
DIGIT, UP_TO_3_DIGITS = r"\p{N}", r"\p{N}{1,3}"

GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{SPACES}"
LLAMA3 = rf"{CONTRACTION}|{LETTERS}|{UP_TO_3_DIGITS}|{SYMBOLS}|{LINES}"
QWEN2 = rf"{CONTRACTION}|{LETTERS}|{DIGIT}|{SYMBOLS}|{LINES}"
QWEN35 = (
    rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|{DIGIT}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{LINES}"
)
SEED = rf"{CONTRACTION}|{LETTERS}|{DIGIT}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{LINES}"
BAILING = (
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"
    rf"|{LETTERS}|{DIGIT}|{SYMBOLS}|\s*[\r\n]|{SPACES}"
)

# A word of capitals and one of small letters are apart, "CamelCase" is two; letters without case are both.
UPPER, LOWER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
CASED = r"[^\r\n\p{{L}}\p{{N}}]?{0}*{1}+{2}|[^\r\n\p{{L}}\p{{N}}]?{0}+{1}*{2}"
PATHS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{LINES}"
TEKKEN = rf"{CASED.format(UPPER, LOWER, '')}|{DIGIT}|{PATHS}"
GPT4O = rf"{CASED.format(UPPER, LOWER, f'(?:{CONTRACTION})?')}|{UP_TO_3_DIGITS}|{PATHS}"

ASCII_SYMBOL = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
DEEPSEEK3 = (
    rf"{ASCII_SYMBOL}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{LINES}"
)
KANJI_AND_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
CJK_AND_HANGUL = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff&&\S]+"  # and most of what lies between
BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

KINDS = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((GPT2,)),
    "starcoder": PreTokenizer((DIGIT, GPT2)),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    "llama-bpe": PreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True),
    "glm4": PreTokenizer((LLAMA3,), ignore_merges=True),
    "dbrx": PreTokenizer((LLAMA3,)),
    "qwen2": PreTokenizer((QWEN2,)),
    "qwen35": PreTokenizer((QWEN35,)),
    "seed-coder": PreTokenizer((SEED,)),
    "bailingmoe": PreTokenizer((BAILING,)),
    "tekken": PreTokenizer((TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o": PreTokenizer((GPT4O,)),
    "deepseek-coder": PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_AND_HANGUL, r"\p{N}")),
    "deepseek-v3": PreTokenizer((UP_TO_3_DIGITS, KANJI_AND_KANA, DEEPSEEK3)),
    "bloom": PreTokenizer((BLOOM,)),
    "viking": PreTokenizer((BLOOM, DIGIT)),
}

# Other names of the same thing.
SAME_AS = {
    "gpt-2": (
        "mpt", "olmo", "jais", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat",
        "a.x-4.0", "mellum", "modern-bert", "exaone4", "trillion", "granite-docling",
    ),
    "starcoder": ("smollm", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
    "llama-bpe": ("llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    "dbrx": ("smaug-bpe", "chatglm-bpe"),
    "qwen2": (
        "stablelm2", "hunyuan", "solar-open", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "grok-2",
    ),
    "bailingmoe": ("bailingmoe2", "llada-moe"),
    "gpt-4o": ("llama4", "kanana2", "talkie", "minimax-m2"),
    "deepseek-v3": ("hunyuan-dense", "joyai-llm"),
    "bloom": ("poro-chat", "gpt3-finnish"),
}  # fmt: skip

NAMED = KINDS | {alias: KINDS[name] for name, aliases in SAME_AS.items() for alias in aliases}
