"""The compute graph of a model.

Architecture files use the modules of this folder: `builder` is the interface; `attention`, `feed_forward`,
`mixture_of_experts`, `decoder` and `encoder` are composed of its operations.

properties    what the model file specifies
ops           ops, the memory that they use, and the graph that they make up
cache         what sequences keep: keys and values in pages, recurrent states
recording     the builder that records operations as ops
"""
