"""Which tokens begin and end texts, which a text gets by itself, and the chat template, in GGUF's keys.

The ids stand in tokenizer_config.json and special_tokens_map.json as texts, in config.json and generation_config.json
as numbers; the first that knows one counts.
"""

from collections.abc import Iterator
from typing import Any

from localinfer.checkpoint.folder import CONFIG, Folder, Table
from localinfer.checkpoint.vocabulary.json_tokenizer import NAME as TOKENIZER
from localinfer.checkpoint.vocabulary.json_tokenizer import flattened
from localinfer.checkpoint.vocabulary.tokens import Tokens
from localinfer.files.source import Field

TOKENIZER_CONFIG = "tokenizer_config.json"
TEXTS = (TOKENIZER_CONFIG, "special_tokens_map.json")
GENERATION = "generation_config.json"
NUMBERS = (CONFIG, GENERATION)

# Hugging Face's name -> GGUF's, with its spelling.
NAMES = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",
    "pad": "padding",
    "cls": "cls",
    "mask": "mask",
    "eot": "eot",
    "eom": "eom",
}
END_OF_MESSAGE = "<|eom_id|>"  # a model waits for a tool's answer then
TEMPLATE = "tokenizer.chat_template"
MORE_TEMPLATES = "additional_chat_templates"


def fields(folder: Folder, tokens: Tokens, n_vocab: int) -> dict[str, Field]:
    """All keys about special tokens, and the chat template."""
    ids = special_ids(folder, tokens, n_vocab)
    if "cls" in ids:  # what begins and ends a text has other names in BERT's kind
        ids.setdefault("bos", ids["cls"])
    if "sep" in ids and tokens.model != "bert":
        ids.setdefault("eos", ids["sep"])
    found = {f"tokenizer.ggml.{NAMES[name]}_token_id": Field.uint32(id) for name, id in ids.items()}
    for name in ("bos", "eos"):
        adds = adds_token(folder, name, ids.get(name), tokens)
        if adds is not None:
            found[f"tokenizer.ggml.add_{name}_token"] = Field.flag(adds and name in ids)
    return found | template_fields(folder)


def special_ids(folder: Folder, tokens: Tokens, n_vocab: int) -> dict[str, int]:
    """Name -> id of the special tokens that there are; "bos" is that of the first file that knows it."""
    by_text = tokens.ids()
    ids: dict[str, int] = {}
    for name in NAMES:
        texts = (text_of(table, f"{name}_token") for table in tables(folder, TEXTS))
        known = [by_text[text] for text in texts if text in by_text]
        numbers = (number_of(table, f"{name}_token_id") for table in tables(folder, NUMBERS))
        known += [id for id in numbers if id is not None and id < n_vocab]
        if known:
            ids[name] = known[0]
    document = number_of(folder.optional(CONFIG), "eod_token_id")  # what eos means, where there is one
    if document is not None and document < n_vocab:
        ids["eos"] = document
    return other_ends(folder, tokens, n_vocab, ids) | ids | dict(tokens.special)


def other_ends(folder: Folder, tokens: Tokens, n_vocab: int, ids: dict[str, int]) -> dict[str, int]:
    """Further tokens that end an answer, of which generation_config.json has a list: GGUF has keys for two."""
    listed: Any = folder.optional(GENERATION).values.get("eos_token_id")
    others = listed if isinstance(listed, list) else []
    others = [id for id in others if type(id) is int and 0 <= id < n_vocab and id != ids.get("eos")]
    message = [id for id in others if id in tokens.by_id and tokens.by_id[id].text == END_OF_MESSAGE]
    turn = [id for id in others if id not in message]
    return {name: found[0] for name, found in (("eot", turn), ("eom", message)) if found}


def tables(folder: Folder, names: tuple[str, ...]) -> Iterator[Table]:
    """What is in these files, nothing where there is none, and in a larger model's part for texts."""
    for name in names:
        table = folder.optional(name)
        yield table
        yield table.table("text_config")


def text_of(table: Table, key: str) -> str | None:
    """A token's text, which may stand in an object with more about it."""
    value: Any = table.values.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def number_of(table: Table, key: str) -> int | None:
    """A token's id, the first one of several."""
    value: Any = table.values.get(key)
    if isinstance(value, list):
        value = value[0] if value else None
    return value if type(value) is int and value >= 0 else None


def adds_token(folder: Folder, name: str, id: int | None, tokens: Tokens) -> bool | None:
    """Whether every text gets this token: said outright, or by the template of tokenizer.json; None: nobody says."""
    said = folder.optional(TOKENIZER_CONFIG).get(f"add_{name}_token", bool, None)
    if said is not None or not folder.has(TOKENIZER):
        return said
    place = {"bos": 0, "eos": -1}[name]
    ends = [single[place].table("SpecialToken") for single in templates(folder.table(TOKENIZER))]
    return id in tokens.by_id and tokens.by_id[id].text in [end.get("id", str, "") for end in ends]


def templates(tokenizer: Table) -> Iterator[list[Table]]:
    """What is put around a text, with the text's own place among it."""
    for step in flattened(tokenizer, "post_processor", "processors"):
        single = step.tables("single") if step.values.get("type") == "TemplateProcessing" else []
        if single:
            yield single


# --- the chat template ---


def template_fields(folder: Folder) -> dict[str, Field]:
    """The default template, and others by name."""
    by_name = read_templates(folder)
    found = {f"{TEMPLATE}.{name}": Field.text(text) for name, text in by_name.items() if name != "default"}
    if found:
        found[f"{TEMPLATE}s"] = Field.texts([name for name in by_name if name != "default"])
    if "default" in by_name:
        found[TEMPLATE] = Field.text(by_name["default"])
    return found


def read_templates(folder: Folder) -> dict[str, str]:
    """Name -> template: a file of its own is stronger than a value in another file."""
    own = folder.text("chat_template.jinja")
    if own is not None:
        return {"default": own, **more_templates(folder)}
    for name in (TOKENIZER_CONFIG, "chat_template.json"):
        table = folder.optional(name)
        value = table.values.get("chat_template")
        if isinstance(value, list):
            each = table.tables("chat_template")
            return {entry.get("name", str): entry.get("template", str) for entry in each}
        if value is not None:
            return {"default": table.get("chat_template", str)}
    return {}


def more_templates(folder: Folder) -> dict[str, str]:
    """Templates for other purposes, each in a file of its name."""
    files = sorted((folder.path / MORE_TEMPLATES).glob("*.jinja"))
    found = {file.stem: folder.text(f"{MORE_TEMPLATES}/{file.name}") for file in files}
    return {name: text for name, text in found.items() if text is not None}
