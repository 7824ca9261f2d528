"""Verification of a model on this machine: each operation of its compute graph against the naive forward pass.

    captured_run.py     runs the graph, and records what each operation computes
    rounded_weights.py  the weights, and activations rounded as the kernels round them
    guided_builder.py   the naive forward pass, which continues with what the kernels have computed
    rounded_inputs.py   the inputs of products, as the kernels have rounded them
    verifier.py         compares both, operation by operation
    verification.py     all of it, for a text
    checkpoint.py       compares hidden states and logits with transformers
"""
