"""Embeddings and reranking: pools the hidden states of a text's tokens and applies a classifier if the file has one."""
