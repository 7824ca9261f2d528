"""Texts that are hard to tokenize: a fixed list of tricky ones, and an endless stream of random mixtures."""

import random
import sys
from collections.abc import Iterator, Sequence

CODE = (
    "def f(x):\n    return x ** 2  # square\n",
    "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i] * b[i];\n\t}\r\n",
    'let s = r#"raw"#; println!("{s:?} {:>08.3}", 1.5e-10_f64);',
    "SELECT * FROM t WHERE name LIKE '%\\_%' AND id <> 0;--",
    "<html><body><h1>Title</h1><p>a &amp; b</p></body></html>",
    '#include <stdio.h>\nint main(){printf("%d\\n", 0x7fff\'ffff);}',
    "$ ls -la | grep '^d' && cd ../.. || exit 1",
    '{"key": [1, 2.50, null, "\\u00e9"], "": {}}',
    "aCamelCase snake_case SCREAMING_CASE kebab-case __dunder__ x86_64",
    "![alt](https://example.org/a?b=c&d=%20#e) `code` **bold** ~~no~~",
)
LANGUAGES = (
    "The quick brown fox jumps over the lazy dog.",
    "I'm you're he'll we've it's DON'T I'D o'clock 'tis rock'n'roll 'S 'Re 'LL",
    "Der Fluß fließt über die Straße; Äpfel, Öl und Übermut.",
    "Ça va où, l'été? Œuvre, naïve, façade…",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "الحروف العربية تُكتب من اليمين إلى اليسار، ٠١٢٣٤٥٦٧٨٩.",
    "אָלֶף־בֵּית עברי",
    "हिन्दी में लिखा हुआ पाठ, १२३।",
    "ภาษาไทยไม่มีช่องว่างระหว่างคำ",
    "日本語の文章、カタカナとひらがな。「引用」１２３",
    "中文字符没有空格，标点符号也不同。㐀㐁𠀀𠀁",
    "한국어 문장입니다. 각 ㄱㅏㄱ",
    "Tiếng Việt có nhiều dấu: ệ ộ ữ ẵ",
    "ქართული, Ελληνικά, Հայերեն, ᏣᎳᎩ, ᚠᚢᚦ, 𝔉𝔯𝔞𝔨𝔱𝔲𝔯",
    "İstanbul ıI ſK Å Ω ﬁ ǅ",
)
EMOJI = (
    "😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "1️⃣", "👩🏿‍🚀", "☺", "🤷🏻‍♂️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
)  # fmt: skip
NUMBERS = (
    "0", "7", "42", "123", "1234", "12345", "123456789", "3.14159", "1,000,000.00", "-1e-10", "²³¹¼½",
    "Ⅻⅷ", "①②⑳", "٣٤", "१२", "１２", "𝟙𝟚", "1st 2nd", "2024-02-29T23:59:60Z", "0xDEADBEEF", "192.168.0.1",
)  # fmt: skip
SPACES = (
    " ", "  ", "   ", "    ", " " * 7, " " * 16, " " * 31, " " * 33, "\t", "\t\t", "\t" * 9, "\n", "\n\n",
    "\n" * 5, "\n" * 33, "\r", "\r\n", "\r\n\r\n", " \n", "\n ", " \t ", "\v", "\f", "\x85", "\xa0",
    "\u1680", "\u2003", "\u2028", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff", "\u180e", "▁", "▁▁",
    " ▁ ", "Ġ", "Ċ",
)  # fmt: skip
CONTROLS = (
    "\0", "\x01\x02", "\x04", "\x07", "\x08", "\x0e\x0f", "\x13\x14", "\x1b[31m", "\x1c\x1d\x1e\x1f",
    "\x7f", "\x80", "\x9f", "\xad", "\u061c", "\u200e\u200f", "\u202e", "\u2066", "\ufffd", "\ufffe",
    "\uffff", "\ue000", "\U000f0000", "\U0010ffff", "\U000e0001", "\ufe0f", "\u0301", "e\u0301",
    "a\u0300\u0301\u0302\u0303", "\u0930\u094d", "\u20dd",
)  # fmt: skip
SPECIALS = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<reponame>", "<file_sep>", "<s>", "</s>", "<bos>",
    "<eos>", "<pad>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>", "<unused0>", "<unused99>",
    "[multimodal]", "<h1>", "</h1>", "<b>", "<table>", "<0x0A>", "<0xFF>", "<0xff>", "<|im_", "_end|>",
    "<start_of_", "<|im_end|", "<<|im_end|>>", "<start_of_image>", "<un", "[mult", "imodal]",
)  # fmt: skip
SYMBOLS = (
    ".", ",", "...", "!?", "--", "—", "\"'", "''", "´`", "()", "[]{}", "<>", "=>", "!=", "&&", "||",
    "@#$%^&*", "~/", "\\n", "//", "/*", "€£¥₿", "±×÷≠≤∞∑√", "→⇒", "°ªº", "“”«»„", "•·", "¿¡", "§¶†", "‰",
    "′″", "＄＋＜＞＾～｜", "،؛؟", "。、",
)  # fmt: skip
LETTERS = ("a", "A", "x", "Hello", "hello", " the", "ing", "é", "ß", "字", "ı", "K", "ſ", "s", "t", "ll", "'s", "'t")
MOJIBAKE = ("Ã©", "â€™", "ï¿½", "\\xff\\xfe", "ÿþ", "\xc3\x28", "\ufffd\ufffd", "Ð¿Ñ€Ð¸", "\U000105c0\U00011bc0")
POOLS = (CODE, LANGUAGES, EMOJI, NUMBERS, SPACES, CONTROLS, SPECIALS, SYMBOLS, LETTERS)


def tricky() -> list[str]:
    """Return a fixed list of about 150 texts."""
    alone = [text for pool in POOLS[:5] for text in pool[:12]]
    batched = [" ".join(pool) for pool in POOLS] + ["".join(pool) for pool in POOLS]
    specials = [f"a{special}b {special} {special}{special}\n" for special in SPECIALS]
    runs = [unit * 100 for unit in ("a", " ", "\n", "\t", "1", "é", "😀", "e\u0301", "ab ", "<b>", " \n", "'s")]
    edges = ["", " ", " a", "a ", " a ", "\n", "a\n", "\na", "\0", "a\0b", *CONTROLS]
    return list(dict.fromkeys([*edges, *alone, *batched, *specials, *runs]))


def random_texts(seed: int, *more: Sequence[str]) -> Iterator[str]:
    """Yield random mixtures of the above, of single code points and of `more` forever; most are short."""
    generator = random.Random(seed)
    pools = [*POOLS, MOJIBAKE, *filter(None, more)]
    while True:
        pieces = (_piece(generator, pools) for _ in range(generator.choice((1, 2, 3, 5, 8, 20, 60))))
        yield "".join(pieces)


def _piece(generator: random.Random, pools: Sequence[Sequence[str]]) -> str:
    kind = generator.random()
    if kind < 0.1:
        return _code_points(generator, generator.randint(1, 4))
    text = generator.choice(generator.choice(pools))
    if kind < 0.2:
        start = generator.randint(0, len(text))
        return text[start : start + generator.randint(1, 6)]
    return text * generator.randint(1, 40) if kind < 0.25 else text


def _code_points(generator: random.Random, n: int) -> str:
    """Return random code points of a random plane: most code points are in planes that are rarely used."""
    limit = generator.choice((0x80, 0x250, 0x3000, 0x10000, 0x20000, sys.maxunicode + 1))
    codes = (generator.randrange(limit) for _ in range(n))
    return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
