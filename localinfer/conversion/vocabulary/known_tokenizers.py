"""Byte-level tokenizers that llama.cpp supports, identified as llama.cpp does: by the ids of a test text.

The table maps `tokenizer.ggml.pre` to prefixes of the SHA-256 of the text's ids, formatted as a Python list. A
modified vocabulary has other ids and is identified by its splitting patterns instead: see json_tokenizer.py.
Source: llama.cpp's conversion/base.py, without tokenizers of embedding models.
"""

import hashlib
import json
from typing import Any

# Whitespace, symbols, numbers of all lengths, scripts and contractions, which pre-tokenizers split differently.
TEXT = (
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n\U0001f680 (normal) \U0001f636\u200d\U0001f32b\ufe0f "
    "(multiple emojis concatenated) \u2705 \U0001f999\U0001f999 3 33 333 3333 33333 333333 3333333 33333333 "
    "3.3 3..3 3...3 \u1780\u17b6\u1793\u17cb\u178f\u17c2\u1796\u17b7\u179f\u17c1\u179f\u17a2\u17b6\u1785\U0001f601 "
    "?\u6211\u60f3\u5728apple\u5de5\u4f5c1314151\u5929\uff5e ------======= "
    "\u043d\u0435\u0449\u043e \u043d\u0430 \u0411\u044a\u043b\u0433\u0430\u0440\u0441\u043a\u0438 "
    "''''''```````\"\"\"\"......!!!!!!?????? I've been 'told he's there, 'RE you sure? 'M not sure I'll make it, "
    "'D you like some tea? We'Ve a'lL"
)
DIGITS = 16  # hex digits of a hash
KNOWN = {
    "a.x-4.0": "b0a6b1c0bd5998eb",
    "afmoe": "49fc0303c9e0d2c2",
    "bailingmoe": "96a5f08be6259352",
    "bailingmoe2": "9b1be57e70d20d95",
    "bloom": "3c30d3ad1d6b6420",
    "chameleon": "60824e3c0d9401f8",
    "chatglm-bpe": "b6e8e1518dc4305b 81d72c7348a9f0eb",
    "codeshell": "7b3e7548e4308f52",
    "cohere2moe": "52df12b4c8d4176e",
    "command-r": "9c2227e4dd922002",
    "dbrx": "a8594e3edff7c29c",
    "deepseek-coder": "347715f544604f91",
    "deepseek-llm": "049ecf7629871e30",
    "deepseek-r1-qwen": "b3f499bb4255f8ca",
    "deepseek-v3": "877081d19cf6996e",
    "exaone": "4e2b24cc4770243d",
    "exaone-moe": "6c81ce329e080288",
    "exaone4": "2085e1638f6c377a",
    "falcon": "8aeee3860c56296a",
    "falcon-h1": "a6b57017d60e6edb 60476e1243776c4f 3eda48b4c4dc7de7 48f8e02c0359c0bb",
    "falcon3": "9d032fcbd5501f4a",
    "gigachat": "ad851be1dba641f2",
    "glm4": "a1336059768a55c9 9ca2dd618e8afaf0 cdf5f35325780597",
    "gpt-2": "0fe1cf6eda062318 3ce83efda5659b07",
    "gpt-4o": "ccc2ef013c104be7",
    "gpt3-finnish": "bc01ce58980e1db4",
    "granite-docling": "53e325976a6e1423",
    "grok-2": "66b8d4e19ab16c3b",
    "hunyuan": "7e57df22b1fe23a7",
    "hunyuan-dense": "bba3b3366b646dbd",
    "hy_v4": "e6ddf9c6686791c1",
    "jais": "b53802fb28e26d64",
    "jais-2": "bc5108ee1eb6a3d6",
    "joyai-llm": "b4b8ca1f9769494f",
    "kanana2": "e4d54df1ebc1f2b9",
    "kimi-k2": "81212dc7cdb7e0c1",
    "kormo": "4a2e2abae11ca2b8",
    "laguna": "972da7b59cec44d1",
    "lfm2": "9e454714343b69b9 169bf0296a13c4d9",
    "llama-bpe": "0ef9807a4087ebef",
    "llama4": "d353350c764d8c3b",
    "megrez": "d4c8f286ea6b520b",
    "mellum": "a1e163ecab2e718a",
    "mellum2": "9dcf830ee9990cdb",
    "midm-2.0": "f6791d196f87ce6b",
    "minerva-7b": "1431a23e583c9743",
    "minicpm5": "36f3066e97b7f399",
    "minimax-m2": "f4f37b6c8eb9ea29",
    "olmo": "b6dc8df998e1cfbd",
    "phi-2": "fcace8b9cac38ce8",
    "pixtral": "0e9433cbbb161f89",
    "poro-chat": "c7ea5862a53e4272",
    "qwen2": "d4540891389ea895 e636dc30a262dcc0",
    "qwen35": "1444df51289cfa80 d30d75d9059f1aa2",
    "refact": "6221ad2852e85ce9",
    "seed-coder": "d5f1dd6f980fec56",
    "smaug-bpe": "c136ed14d01c2745",
    "smollm": "855059429035d75a",
    "solar-open": "16389f0a1f51ee53",
    "spark2_5": "0a766d034107bc73",
    "stablelm2": "32d85c31273f8019",
    "starcoder": "35d91631860c815f",
    "superbpe": "7dec86086fcc38b6",
    "talkie": "f728162c1315c26e",
    "tekken": "63b97e4253352e6f",
    "tiny_aya": "d772b220ace2baec",
    "trillion": "1994ffd01900cfb3",
    "ufakzeka": "653660222fb704f6",
    "viking": "7fc505bd3104ca10",
    "youtu": "9d70134b369a70e5",
}
BY_HASH = {each: name for name, hashes in KNOWN.items() for each in hashes.split()}


def identify(tokenizer: dict[str, Any]) -> str | None:
    """Return GGUF's name of the tokenizer in a tokenizer.json, or None if it is unknown or unusable."""
    from tokenizers import Tokenizer

    try:
        ids = Tokenizer.from_str(json.dumps(tokenizer)).encode(TEXT).ids
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # invalid files make the library panic, which is not an Exception
        return None
    return BY_HASH.get(hashlib.sha256(str(ids).encode()).hexdigest()[:DIGITS])
