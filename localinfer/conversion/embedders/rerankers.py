"""Rerankers that are decoders: a prompt asks whether a document is relevant, and logits of the answers are its score.

Their checkpoints are those of generative models. As in llama.cpp's converter, the name of the directory, config.json or
the README tells them apart. The file has the rows of the output layer that belong to the answers as a classifier, and
the prompt as a chat template.

jina-reranker-v3 has a class of its own, reads all documents in one prompt, and projects hidden states to vectors: the
file has the projector as dense layers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.checkpoint_folder import CONFIG, CheckpointFolder, JsonObject
from localinfer.conversion.embedders.sentence_transformers import dense_tensor
from localinfer.conversion.metadata.general_metadata import organization_and_name
from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor
from localinfer.conversion.tensor_formats.values import FLOATS, decode_float32, to_bytes
from localinfer.conversion.vocabulary.token_list import TokenList
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.gguf.pooling import (
    DENSE_LAYERS,
    POOLINGS,
    RERANK_INSTRUCTION_TEMPLATE,
    RERANK_LIST_DOCUMENT,
    RERANK_LIST_INSTRUCTION_TEMPLATE,
    RERANK_LIST_TEMPLATE,
    RERANK_TEMPLATE,
)
from localinfer.gguf.source import Field, SourceTensor
from quant import ggml

CLASSIFIER = "cls.output.weight"
F32 = ggml.TYPE_NUMBERS["F32"]


@dataclass(frozen=True, kw_only=True)
class Reranker:
    """A family of rerankers. `name` is a part of their names, in lower case, and `architecture` GGUF's.

    The score is the logit of the first of `answers`, minus that of the second if there is one; with `labels` it is the
    probability of the first. `template` and `instruction_template` are as in `localinfer.embedding.rerank_template`.
    """

    name: str
    architecture: str
    answers: tuple[str, ...]
    labels: tuple[str, ...] = ()
    template: str
    instruction_template: str = ""


QWEN3 = Reranker(  # llama.cpp's prompt, to the byte
    name="qwen3-reranker",
    architecture="qwen3",
    answers=("yes", "no"),
    labels=("yes", "no"),
    template=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct"
        ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: {query}\n"
        "<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ),
)
MXBAI_PROMPT = (
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n{{cut}}{}query: {{query}}{{cut}}\n{{cut}}document: {{document}}{{cut}}\n{{cut}}You are a search"
    " relevance expert who evaluates how well documents match search queries. For each query-document pair, carefully"
    " analyze the semantic relationship between them, then provide your binary relevance judgment (0 for not relevant,"
    " 1 for relevant).\nRelevance:{{cut}}<|im_end|>\n<|im_start|>assistant\n"
)
MXBAI = Reranker(  # the prompt of the package mxbai-rerank 0.1.6
    name="mxbai-rerank",
    architecture="qwen2",
    answers=("1", "0"),
    template=MXBAI_PROMPT.format(""),
    instruction_template=MXBAI_PROMPT.format("instruction: {instruction}\n"),
)
BGE_PROMPT = "<bos>{{cut}}A: {{query}}{{cut}}\n{{cut}}B: {{document}}{{cut}}\n{{cut}}{}"
BGE_GEMMA = Reranker(  # the prompt of the package FlagEmbedding 1.4.2
    name="bge-reranker-v2-gemma",
    architecture="gemma",
    answers=("Yes",),
    template=BGE_PROMPT.format(
        "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a"
        " prediction of either 'Yes' or 'No'."
    ),
    instruction_template=BGE_PROMPT.format("{instruction}"),
)
RERANKERS = (QWEN3, MXBAI, BGE_GEMMA)
LIST_CLASS, PROJECTOR = "JinaForRanking", ("projector.0.weight", "projector.2.weight")  # with ReLU between them
LIST_PROMPT = (
    "<|im_start|>system\nYou are a search relevance expert who can determine a ranking of the passages based on how"
    " relevant they are to the query. If the query is a question, how relevant a passage is depends on how well it"
    " answers the question. If not, try to analyze the intent of the query and assess how well each passage satisfies"
    " the intent. If an instruction is provided, you should follow the instruction when determining the ranking."
    "<|im_end|>\n<|im_start|>user\nI will provide you with {{count}} passages, each indicated by a numerical"
    " identifier. Rank the passages based on their relevance to query: {{query}}\n{}{{documents}}<query>\n"
    "{{query}}<|rerank_token|>\n</query><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
LIST_TEMPLATES = {  # the prompt of the model's own code
    RERANK_LIST_TEMPLATE: LIST_PROMPT.format(""),
    RERANK_LIST_INSTRUCTION_TEMPLATE: LIST_PROMPT.format("<instruct>\n{instruction}\n</instruct>\n"),
    RERANK_LIST_DOCUMENT: '<passage id="{index}">\n{document}<|embed_token|>\n</passage>\n',
}


def find_reranker(folder: CheckpointFolder, architecture: Architecture) -> Reranker | None:
    """Return the family of a checkpoint with this architecture, or None if it is no decoder that reranks.

    A Qwen3 with a classifier is one, whatever its name is, as in llama.cpp's converter.
    """
    if architecture.name == QWEN3.architecture and "cls.output" in architecture.model_tensors:
        return QWEN3
    config = folder.json(CONFIG)
    names = [organization_and_name(folder.path.resolve())[1], config.get("_name_or_path", str, "")]
    headings = re.findall(r"^# .*", folder.read_text("README.md") or "", re.MULTILINE)
    text = "\n".join([*names, *headings]).lower()
    return next((each for each in RERANKERS if each.architecture == architecture.name and each.name in text), None)


def fields(reranker: Reranker) -> dict[str, Field]:
    """Return the keys of a reranker."""
    keys = {f"{reranker.architecture}.pooling_type": Field.uint32(POOLINGS.index("rank"))}
    if reranker.labels:
        keys[f"{reranker.architecture}.classifier.output_labels"] = Field.texts(reranker.labels)
    keys[RERANK_TEMPLATE] = Field.text(reranker.template)
    names = ["rerank"]
    if reranker.instruction_template:
        keys[RERANK_INSTRUCTION_TEMPLATE] = Field.text(reranker.instruction_template)
        names.append("rerank_instruction")
    return keys | {"tokenizer.chat_templates": Field.texts(names)}


def with_classifier(
    reranker: Reranker, tensors: Mapping[str, SourceTensor], tokens: TokenList
) -> dict[str, SourceTensor]:
    """Return the tensors with a classifier in place of the output layer, unless they have one.

    Raises LocalInferError if an answer is not one token, UnsupportedError if the output layer is packed.
    """
    if CLASSIFIER in tensors:
        return dict(tensors)
    output = tensors["output.weight" if "output.weight" in tensors else "token_embd.weight"]
    ids = [tokens.ids_by_text().get(answer) for answer in reranker.answers]
    if None in ids:
        raise LocalInferError(f"{reranker.name}: the tokenizer has no token {reranker.answers[ids.index(None)]}")
    if output.type_name not in FLOATS:
        raise UnsupportedError(f"tensor {output.name}: type {output.type_name} is not supported in a reranker")
    rows = [id for id in ids if id is not None]
    kept = {name: tensor for name, tensor in tensors.items() if name != "output.weight"}
    return kept | {CLASSIFIER: classifier(reranker, output, rows)}


def classifier(reranker: Reranker, output: SourceTensor, rows: list[int]) -> SourceTensor:
    """Return these rows of the output layer, or their difference as one row in F32, unless the answers are labels."""

    def stored() -> NDArray[np.uint8]:
        return output.load().reshape(output.shape[0], -1)[rows].reshape(-1)

    def difference() -> NDArray[np.uint8]:
        values = decode_float32(stored(), output.type_name).reshape(len(rows), -1)
        return to_bytes(values[:1] - values[1:].sum(axis=0))

    n = output.shape[1]
    if reranker.labels:
        return SourceTensor(CLASSIFIER, (len(rows), n), output.type, stored)
    return SourceTensor(CLASSIFIER, (1, n), F32, difference)


# --- rerankers that read all documents in one prompt ---


def reads_lists(config: JsonObject) -> bool:
    """Return whether a checkpoint is such a reranker."""
    return LIST_CLASS in config.get("architectures", list)


def projector_tensors(
    folder: CheckpointFolder, stored: Mapping[str, StoredTensor], n_embd: int
) -> dict[str, SourceTensor]:
    """Return the projector of a checkpoint as dense layers, whose sizes config.json does not state.

    Raises LocalInferError for a matrix that is missing, or that does not fit the one before it.
    """
    tensors, n = dict[str, SourceTensor](), n_embd
    for name, source in zip(DENSE_LAYERS, PROJECTOR, strict=True):
        if source not in stored:
            raise folder.error(f"tensor {source}: is missing")
        found = stored[source]
        if len(found.shape) != 2 or found.shape[1] != n:
            raise found.error(f"has shape {list(found.shape)}, not {n} columns")
        tensors[f"{name}.weight"], n = dense_tensor(found, f"{name}.weight", found.shape), found.shape[0]
    return tensors


def list_fields(architecture: str, projector: Mapping[str, SourceTensor]) -> dict[str, Field]:
    """Return the keys of such a reranker."""
    fields = {f"{architecture}.pooling_type": Field.uint32(POOLINGS.index("rank"))}
    for name in DENSE_LAYERS:
        n_out, n_in = projector[f"{name}.weight"].shape
        fields |= {f"{architecture}.{name}_feat_{key}": Field.uint32(n) for key, n in (("in", n_in), ("out", n_out))}
    fields[f"{architecture}.{DENSE_LAYERS[0]}_activation"] = Field.text("relu")
    templates = {key: Field.text(text) for key, text in LIST_TEMPLATES.items()}
    names = [key.removeprefix("tokenizer.chat_template.") for key in LIST_TEMPLATES]
    return fields | templates | {"tokenizer.chat_templates": Field.texts(names)}
