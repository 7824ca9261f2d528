"""Evaluation of models on a text: perplexity, KL divergence, importance matrices, profiling."""
