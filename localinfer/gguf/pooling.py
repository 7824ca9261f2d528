"""What files of embedding models and rerankers have: pooling types, the tensors that follow the hidden states, prompts.

These tensors are not part of the compute graph: `localinfer.embedding` applies them to one vector per text.
"""

# The index is llama.cpp's number, which is the value of the key <architecture>.pooling_type.
POOLINGS = ("none", "mean", "cls", "last", "rank")

# The classifier of a reranker.
CLASSIFIER = ("cls.weight", "cls.bias", "cls.norm.weight", "cls.output.weight", "cls.output.bias")

# The dense layers that sentence-transformers applies to the pooled vector, its 2_Dense and 3_Dense.
DENSE_LAYERS = ("dense_2", "dense_3")
DENSE_TENSORS = tuple(f"{name}.{kind}" for name in DENSE_LAYERS for kind in ("weight", "bias"))
DENSE_KEYS = tuple(f"{name}_{kind}" for name in DENSE_LAYERS for kind in ("feat_in", "feat_out", "activation"))

# Texts before a query or a document, by name, and the name of the one that is used if none is named.
PROMPT_KEY, DEFAULT_PROMPT_KEY = "sentence_transformers.prompt.", "sentence_transformers.default_prompt_name"

# Templates of a reranker's prompt: `localinfer.embedding.rerank_template`.
RERANK_TEMPLATE = "tokenizer.chat_template.rerank"
RERANK_INSTRUCTION_TEMPLATE = "tokenizer.chat_template.rerank_instruction"

# Templates of a prompt with all documents: `localinfer.embedding.list_reranking`.
RERANK_LIST_TEMPLATE = "tokenizer.chat_template.rerank_list"
RERANK_LIST_INSTRUCTION_TEMPLATE = "tokenizer.chat_template.rerank_list_instruction"
RERANK_LIST_DOCUMENT = "tokenizer.chat_template.rerank_list_document"
