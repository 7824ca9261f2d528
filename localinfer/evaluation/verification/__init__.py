"""Verification of a model on this machine: each operation of its compute graph against the naive forward pass.

    captured_run.py         runs the graph, and records what each operation computes
    rounded_weights.py      the weights, and activations rounded as the kernels round them
    guided_builder.py       the naive forward pass, which continues with what the kernels have computed
    rounded_inputs.py       the inputs of products, as the kernels have rounded them
    operation_check.py      the check of an operation: its error, and what rounding allows
    verifier.py             compares both, operation by operation
    verification.py         all of it, for a text
    encoder_inputs.py       what encoders of images and sounds read, and their graphs
    encoder_verifier.py     compares the ops of an encoder with those of `localinfer.naive.encoders`
    host_checks.py          checks of spectrograms and of interpolated positions, which numpy computes
    encoder_verification.py all of it, for the encoders of a file
    file_verification.py    a model file and its projector
    checkpoint.py           compares hidden states and logits with transformers
"""
