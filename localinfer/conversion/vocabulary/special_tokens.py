"""Special tokens, add_bos/add_eos/add_sep and the chat template, as GGUF keys.

tokenizer_config.json and special_tokens_map.json contain special tokens as text, config.json and
generation_config.json as ids. The first file that has one is used.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from localinfer.chat_template.builtin_templates import builtin_templates
from localinfer.conversion.checkpoint_folder import CONFIG, CheckpointFolder, JsonObject
from localinfer.conversion.vocabulary.json_tokenizer import NAME as TOKENIZER
from localinfer.conversion.vocabulary.json_tokenizer import flatten_steps
from localinfer.conversion.vocabulary.template_programs import template_of_program
from localinfer.conversion.vocabulary.token_list import TokenList
from localinfer.escaping import printable
from localinfer.gguf.source import Field
from localinfer.tokenizer.vocabulary import CONTROL, SUPPRESSED

TOKENIZER_CONFIG = "tokenizer_config.json"
TEXT_FILES = (TOKENIZER_CONFIG, "special_tokens_map.json")
GENERATION = "generation_config.json"
ID_FILES = (CONFIG, GENERATION)

# Hugging Face's name -> GGUF's (GGUF spells it "seperator").
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
END_OF_MESSAGE = "<|eom_id|>"  # the model waits for a tool result
TEMPLATE = "tokenizer.chat_template"
MORE_TEMPLATES = "additional_chat_templates"


def fields(
    folder: CheckpointFolder, tokens: TokenList, n_vocab: int, end_of_turn: str = "", chat_template: str = ""
) -> dict[str, Field]:
    """Return all keys about special tokens, and the chat template. `end_of_turn` is the text of the token that ends a
    turn, and `chat_template` the name of a built-in template, where checkpoints have none."""
    ids = special_ids(folder, tokens, n_vocab)
    if end_of_turn and (id := tokens.ids_by_text().get(end_of_turn)) is not None:
        ids["eot"] = id
    if "cls" in ids:  # BERT-like models call BOS and EOS cls and sep
        ids.setdefault("bos", ids["cls"])
    if "sep" in ids and tokens.model != "bert":
        ids.setdefault("eos", ids["sep"])
    found = {f"tokenizer.ggml.{NAMES[name]}_token_id": Field.uint32(id) for name, id in ids.items()}
    for name in ("bos", "eos"):
        adds = adds_token(folder, name, ids.get(name), tokens)
        if adds is not None:
            found[f"tokenizer.ggml.add_{name}_token"] = Field.flag(adds and name in ids)
    adds_separator = adds_pair_separator(folder)
    if adds_separator is not None:
        found["tokenizer.ggml.add_sep_token"] = Field.flag(adds_separator)
    return found | suppressed_tokens(folder, n_vocab) | template_fields(folder, chat_template)


def special_ids(folder: CheckpointFolder, tokens: TokenList, n_vocab: int) -> dict[str, int]:
    """Return name -> id of the special tokens, each from the first file that has it."""
    by_text = tokens.ids_by_text()
    ids: dict[str, int] = {}
    for name in NAMES:
        texts = (token_text(table, f"{name}_token") for table in config_objects(folder, TEXT_FILES))
        known = [by_text[text] for text in texts if text in by_text]
        numbers = (token_number(table, f"{name}_token_id") for table in config_objects(folder, ID_FILES))
        known += [id for id in numbers if id is not None and id < n_vocab]
        if known:
            ids[name] = known[0]
    document = token_number(folder.optional_json(CONFIG), "eod_token_id")  # overrides eos if present
    if document is not None and document < n_vocab:
        ids["eos"] = document
    return other_eog_tokens(folder, tokens, n_vocab, ids) | ids | dict(tokens.special_ids)


def other_eog_tokens(folder: CheckpointFolder, tokens: TokenList, n_vocab: int, ids: dict[str, int]) -> dict[str, int]:
    """Return further end-of-generation tokens, of which generation_config.json, or else config.json, has a list. GGUF
    has keys for two.

    A single id of generation_config.json that differs from the tokenizer's counts, too, unless it may be a leftover
    default: copied from config.json, no control token, or a token with another role.
    """
    generation = folder.optional_json(GENERATION)
    given = (table.values.get("eos_token_id") for table in config_objects(folder, (GENERATION, CONFIG)))
    first: Any = next((value for value in given if value is not None), [])
    listed = first if isinstance(first, list) else []
    if type(first) is int and generation.values.get("eos_token_id") == first and first not in ids.values():
        is_control = first in tokens.by_id and tokens.by_id[first].type == CONTROL
        listed = [first] if is_control and not generation.get("_from_model_config", bool, False) else []
    others = [id for id in listed if type(id) is int and 0 <= id < n_vocab and id != ids.get("eos")]
    others = list(dict.fromkeys(others))
    end_of_message = [id for id in others if id in tokens.by_id and tokens.by_id[id].text == END_OF_MESSAGE]
    end_of_turn = [id for id in others if id not in end_of_message]
    if not end_of_message:  # a third token takes the free key
        end_of_turn, end_of_message = end_of_turn[:1], end_of_turn[1:]
    return {name: found[0] for name, found in (("eot", end_of_turn), ("eom", end_of_message)) if found}


def suppressed_tokens(folder: CheckpointFolder, n_vocab: int) -> dict[str, Field]:
    """Return the key of the tokens that must never be generated, if generation_config.json lists some.

    llama.cpp's converter writes it for Gemma 4 only, but transformers suppresses these tokens of every model.
    """
    listed = folder.optional_json(GENERATION).get("suppress_tokens", list, [])
    ids = [id for id in listed if type(id) is int and 0 <= id < n_vocab]
    return {SUPPRESSED: Field.numbers(np.array(ids, np.int32))} if ids else {}


def config_objects(folder: CheckpointFolder, names: tuple[str, ...]) -> Iterator[JsonObject]:
    """Yield the objects in these files and their text_config, empty if missing."""
    for name in names:
        table = folder.optional_json(name)
        yield table
        yield table.child("text_config")


def token_text(table: JsonObject, key: str) -> str | None:
    """Return a token's text, which may be nested in an object."""
    value: Any = table.values.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def token_number(table: JsonObject, key: str) -> int | None:
    """Return a token's id, the first one of a list."""
    value: Any = table.values.get(key)
    if isinstance(value, list):
        value = value[0] if value else None
    return value if type(value) is int and value >= 0 else None


def adds_token(folder: CheckpointFolder, name: str, id: int | None, tokens: TokenList) -> bool | None:
    """Return whether the token is added to every text, by tokenizer_config.json or the template of tokenizer.json; None
    if unknown.
    """
    configured = folder.optional_json(TOKENIZER_CONFIG).get(f"add_{name}_token", bool, None)
    if configured is not None or not folder.has(TOKENIZER):
        return configured
    index = {"bos": 0, "eos": 1}[name]
    added = [ends[index] for ends in enclosing_tokens(folder.json(TOKENIZER))]
    return id in tokens.by_id and tokens.by_id[id].text in added


def adds_pair_separator(folder: CheckpointFolder) -> bool | None:
    """Return whether the two texts of a pair are separated by one more token than follows each text; None if the
    tokenizer specifies no pairs, or pairs that GGUF cannot express.
    """
    if not folder.has(TOKENIZER):
        return None
    for step in flatten_steps(folder.json(TOKENIZER), "post_processor", "processors"):
        kind = step.get("type", str, "")
        if kind in ("BertProcessing", "RobertaProcessing"):
            return bool(kind == "RobertaProcessing")
        if kind == "TemplateProcessing":
            single, pair = tokens_after_texts(step.children("single")), tokens_after_texts(step.children("pair"))
            if len(pair) == 2 and pair[1:] == single and len(pair[0]) - len(single[0]) in (0, 1):
                return len(pair[0]) > len(single[0])
    return None


def tokens_after_texts(template: list[JsonObject]) -> list[list[str]]:
    """Return the special tokens after each text of a template."""
    tokens: list[list[str]] = []
    for item in template:
        if "Sequence" in item.values:
            tokens.append([])
        elif tokens:
            tokens[-1].append(item.child("SpecialToken").get("id", str, ""))
    return tokens


def enclosing_tokens(tokenizer: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield the special tokens before and after a text, "" if there are none: those of templates, and of the steps
    that RoBERTa and BERT have instead.
    """
    for step in flatten_steps(tokenizer, "post_processor", "processors"):
        kind = step.values.get("type")
        single = step.children("single") if kind == "TemplateProcessing" else []
        if single:
            names = [part.child("SpecialToken").get("id", str, "") for part in single]
            if sum(map(bool, names)) > bool(names[0]) + bool(names[-1]):
                shown = printable(" ".join(name or "TEXT" for name in names), 80)
                warnings.warn(str(step.error("single", f"{shown}: only the outer tokens are added")), stacklevel=2)
            yield names[0], names[-1]
        elif kind in ("RobertaProcessing", "BertProcessing"):
            yield pair_text(step, "cls"), pair_text(step, "sep")


def pair_text(step: JsonObject, key: str) -> str:
    """Return the text of a special token that is stored as a pair of text and id."""
    pair = step.get(key, list)
    if not pair or not isinstance(pair[0], str):
        raise step.error(key, "must be a pair of text and id")
    return pair[0]


# --- the chat template ---


def template_fields(folder: CheckpointFolder, usual: str = "") -> dict[str, Field]:
    """Return the default chat template, and others by name. Without any, it is the built-in one named `usual`."""
    by_name = read_templates(folder)
    if usual and not by_name:
        by_name = {"default": builtin_templates()[usual]}
    fields = {f"{TEMPLATE}.{name}": Field.text(text) for name, text in by_name.items() if name != "default"}
    if fields:
        fields[f"{TEMPLATE}s"] = Field.texts([name for name in by_name if name != "default"])
    if "default" in by_name:
        fields[TEMPLATE] = Field.text(by_name["default"])
    return fields


def read_templates(folder: CheckpointFolder) -> dict[str, str]:
    """Return name -> template; a separate file takes precedence over a value in another file.

    A checkpoint may have a known program instead of a template.
    """
    template = folder.read_text("chat_template.jinja")
    if template is not None:
        return {"default": template, **more_templates(folder)}
    for name in (TOKENIZER_CONFIG, "chat_template.json"):
        table = folder.optional_json(name)
        value = table.values.get("chat_template")
        if isinstance(value, list):
            each = table.children("chat_template")
            return {entry.get("name", str): entry.get("template", str) for entry in each}
        if value is not None:
            return {"default": table.get("chat_template", str)}
    template = template_of_program(folder)
    return {} if template is None else {"default": template}


def more_templates(folder: CheckpointFolder) -> dict[str, str]:
    """Return the templates for other purposes, each in a file of its name."""
    files = sorted((folder.path / MORE_TEMPLATES).glob("*.jinja"))
    templates = {file.stem: folder.read_text(f"{MORE_TEMPLATES}/{file.name}") for file in files}
    return {name: text for name, text in templates.items() if text is not None}
