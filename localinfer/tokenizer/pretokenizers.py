"""Pre-tokenizers of byte-level BPE: how text is split into words before merging, by `tokenizer.ggml.pre`.

A pre-tokenizer is a list of regular expressions, applied one after another. Each match becomes a piece, and so does
the text between two matches; the next expression then splits every piece further. The syntax is Oniguruma's, and
\\s, \\p{L}, ... have its meaning.

Every entry reproduces llama.cpp's words, even where the model's original tokenizer splits differently.
"""

from collections.abc import Callable
from typing import NamedTuple

from localinfer.tokenizer.digit_grouping import group_ascii_digits, group_digits_with_prefix

# Where a long text may be cut: behind a letter of ASCII, before a space or a line break and another letter.
BETWEEN_WORDS, BETWEEN_LINES = r"(?<=[A-Za-z])(?=[ \n][A-Za-z])", r"(?<=[A-Za-z])(?=\n[A-Za-z])"
NOWHERE = "(?!)"


class PreTokenizer(NamedTuple):
    """The splitting rules of one `tokenizer.ggml.pre`.

    `ignore_merges`: a word that is a token is not built from merges. `add_bos`: the default of add_bos_token.
    `split`: splits a text before the patterns do, for rules that no regular expression can apply in linear time.
    `boundary`: a regular expression of Python for where a long text may be cut without changing its words.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    split: Callable[[str], list[str]] | None = None
    boundary: str = BETWEEN_WORDS


# English contractions in any case. (?i:'s) would also match the long s, U+017F.
CONTRACTION = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"

SPACES = r"\s+(?!\S)|\s+"  # the last space of a run belongs to the next word
LINES = rf"\s*[\r\n]+|{SPACES}"
SPACES_BY_POWERS = "|".join([*(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1)), r"\s{1,2}(?!\S)", r"\s"])
WHOLE_LINES = r"[^\n]+|\n+"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
MARKED = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"  # letters with their combining marks
PHRASE = r"[^\r\n\p{L}\p{N}]?\p{L}\p{M}*(?: ?\p{L}\p{M}*)*"  # words with single spaces between
DIGIT, UP_TO_3_DIGITS = r"\p{N}", r"\p{N}{1,3}"

GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{SPACES}"
LLAMA3 = rf"{CONTRACTION}|{LETTERS}|{UP_TO_3_DIGITS}|{SYMBOLS}|{LINES}"
JAIS2 = rf"{CONTRACTION}|{LETTERS}|{UP_TO_3_DIGITS}|{SYMBOLS}|\s*[\r\n]+|{SPACES_BY_POWERS}"
MINICPM5 = rf"{CONTRACTION}|{LETTERS}|\p{{N}}+|{SYMBOLS}|{LINES}"
WITHOUT_CONTRACTIONS = rf"{LETTERS}|{DIGIT}|{SYMBOLS}|{LINES}"
QWEN2 = rf"{CONTRACTION}|{WITHOUT_CONTRACTIONS}"
QWEN35 = rf"{CONTRACTION}|{MARKED}|{DIGIT}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{LINES}"
SEED = rf"{CONTRACTION}|{LETTERS}|{DIGIT}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{LINES}"
BAILING = rf"{CONTRACTION}|{LETTERS}|{DIGIT}|{SYMBOLS}|\s*[\r\n]|{SPACES}"
EXAONE_MOE = rf"{CONTRACTION}|{PHRASE}|{DIGIT}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{SPACES}"

# Words split at case changes: "CamelCase" is two words. Letters without case count as both cases.
UPPER, LOWER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
UPPER_MARKED, LOWER_MARKED = r"(?:(?=[\p{L}\p{M}])[^a-z])", r"(?:(?=[\p{L}\p{M}])[^A-Z])"
CASED = r"[^\r\n\p{{L}}\p{{N}}]?{0}*{1}+{2}|[^\r\n\p{{L}}\p{{N}}]?{0}+{1}*{2}"
CONTRACTED = rf"(?:{CONTRACTION})?"
PATHS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{LINES}"
TEKKEN = rf"{CASED.format(UPPER, LOWER, '')}|{DIGIT}|{PATHS}"
GPT4O = rf"{CASED.format(UPPER, LOWER, CONTRACTED)}|{UP_TO_3_DIGITS}|{PATHS}"
GRANITE_MULTI = rf"{CASED.format(UPPER_MARKED, LOWER_MARKED, CONTRACTED)}|{UP_TO_3_DIGITS}|{PATHS}"
YOUTU = rf"{MARKED}{CONTRACTED}|{DIGIT}|{PATHS}"
TINY_AYA = rf"{MARKED}{CONTRACTED}|{UP_TO_3_DIGITS}|{PATHS}"

ASCII_SYMBOL = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
DEEPSEEK_WORDS = rf"{ASCII_SYMBOL}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
DEEPSEEK3 = rf"{DEEPSEEK_WORDS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{LINES}"
SPARK = rf"{DEEPSEEK_WORDS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|{SPACES}"
KANJI_AND_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
CJK_AND_HANGUL = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff&&\S]+"  # and most of the range between them
EAST_ASIAN = (  # CJK, kana, Thai, Lao, Khmer, Burmese, Hangul; \u8c48 may once have been its twin \uf900
    r"[\u3400-\u4dbf\u4e00-\u9fff\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    r"\u0e40-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
HANGUL_SIGNS_BOPOMOFO_KANA = (
    r"[\uac00-\ud7a3\u3131-\u318e]+"
    r"|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    rf"|[\u3105-\u312f]+|{KANJI_AND_KANA}"
)
HAN = r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\x{20000}-\x{2a6df}\x{2a700}-\x{2ebef}\x{2f800}-\x{2fa1f}]"
KIMI = rf"{HAN}+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{HAN}]]+{CONTRACTED}|{UP_TO_3_DIGITS}|{SYMBOLS}|{LINES}"
# Letters of scripts with case, without those of newer Unicode versions.
WITH_CASE = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8f\u2d00-\u2d2d\ua790-\uab6f"
    r"\x{10570}-\x{105bc}\x{16e40}-\x{1df2a}]]"
)
WIDE_SIGN = r"[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001\u3002]"
BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

PRE_TOKENIZERS = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((GPT2,)),
    "starcoder": PreTokenizer((DIGIT, GPT2)),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    "chameleon": PreTokenizer(
        ("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\t\n]|    |  ", DIGIT, r"[\p{P}!-/:-@\[-`{-~]", GPT2),
        add_bos=True,
    ),
    "llama-bpe": PreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True),
    "glm4": PreTokenizer((LLAMA3,), ignore_merges=True),
    "dbrx": PreTokenizer((LLAMA3,)),
    "jais-2": PreTokenizer((JAIS2,)),
    "minicpm5": PreTokenizer((UP_TO_3_DIGITS, MINICPM5), ignore_merges=True),
    "qwen2": PreTokenizer((QWEN2,)),
    "qwen35": PreTokenizer((QWEN35,)),
    "ufakzeka": PreTokenizer((WITHOUT_CONTRACTIONS,)),
    "laguna": PreTokenizer((WHOLE_LINES, QWEN2)),
    "seed-coder": PreTokenizer((SEED,)),
    "bailingmoe": PreTokenizer((BAILING,)),
    "exaone-moe": PreTokenizer((EXAONE_MOE,), boundary=BETWEEN_LINES),
    "kimi-k2": PreTokenizer((KIMI,)),
    "tekken": PreTokenizer((TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o": PreTokenizer((GPT4O,)),
    "granite-embed-multi-97m": PreTokenizer((GRANITE_MULTI,), ignore_merges=True),
    "youtu": PreTokenizer((HANGUL_SIGNS_BOPOMOFO_KANA, YOUTU), ignore_merges=True),
    "tiny_aya": PreTokenizer((TINY_AYA,), split=group_digits_with_prefix),
    "superbpe": PreTokenizer((), split=group_ascii_digits, boundary=NOWHERE),
    "afmoe": PreTokenizer((EAST_ASIAN, DEEPSEEK3), split=group_digits_with_prefix),
    "deepseek-llm": PreTokenizer(
        ("[\r\n]", rf"\s?{WITH_CASE}+", rf"\s?{WIDE_SIGN}+", r"\s+\z", CJK_AND_HANGUL, r"\p{N}+")
    ),
    "deepseek-coder": PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_AND_HANGUL, DIGIT)),
    "deepseek-v3": PreTokenizer((UP_TO_3_DIGITS, KANJI_AND_KANA, DEEPSEEK3)),
    "spark2_5": PreTokenizer((UP_TO_3_DIGITS, KANJI_AND_KANA, SPARK, DIGIT)),
    "bloom": PreTokenizer((BLOOM,)),
    "viking": PreTokenizer((BLOOM, DIGIT)),
}

# Other names of the same pre-tokenizers.
ALIASES = {
    "gpt-2": (
        "mpt", "olmo", "jais", "phi-2", "jina-es", "jina-de", "jina-v1-en", "jina-v2-code", "jina-v2-de",
        "jina-v2-es", "roberta-bpe", "gigachat", "a.x-4.0", "mellum", "modern-bert", "exaone4", "trillion",
        "granite-docling",
    ),
    "starcoder": ("smollm", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
    "llama-bpe": (
        "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
    ),
    "glm4": ("glm5",),
    "dbrx": ("smaug-bpe", "chatglm-bpe"),
    "qwen2": (
        "stablelm2", "hunyuan", "solar-open", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "grok-2",
    ),
    "bailingmoe": ("bailingmoe2", "llada-moe"),
    "gpt-4o": ("llama4", "kanana2", "talkie", "minimax-m2"),
    "tiny_aya": ("cohere2moe",),
    "deepseek-v3": ("hunyuan-dense", "joyai-llm", "hy_v4"),
    "bloom": ("poro-chat", "gpt3-finnish"),
}  # fmt: skip

BY_NAME = PRE_TOKENIZERS | {alias: PRE_TOKENIZERS[name] for name, aliases in ALIASES.items() for alias in aliases}
