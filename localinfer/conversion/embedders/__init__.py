"""Conversion of what only embedding models and rerankers have: pooling, prompts, dense layers, scores."""
