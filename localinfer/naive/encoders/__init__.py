"""The naive forward pass of encoders of images and sounds, in numpy and float64.

An encoder's file (`localinfer/multimodal/encoders`, `localinfer/multimodal/sounds/encoders`) records a compute graph: a
list of ops, each of which is a kernel with its arguments. `operations.py` has what each kernel computes, in numpy, so
the same list is computed without kernels (`forward.py`). Read it beside the file of an encoder:

    operations          what each op computes, by its kernel: norms, products, activations, caches
    gathered_rows       tables of row numbers: pixel shuffle, convolutions, pooling
    span_attention      attention of rows to spans of rows, which may depend on their distance
    relative_positions  decomposed relative positions, of Segment Anything
    cumulative_norm     the norm of a sound with all that came before
    interpolation       learned positions for a grid of another size
    spectrogram         the energy of a sound in bands of a mel scale
    op_arguments        the arguments of an op, as arrays
    forward             all ops of a graph, one after the other
"""
