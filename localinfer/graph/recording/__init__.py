"""Recording of a model's operations as ops of a compute graph.

graph_builder      the builder: rows, matrices, residual streams and output
attention          attention, with the KV cache and the tables of rotation angles (rope_tables) and the
                   ring buffers of layers with the same window (rings)
embeddings, heads, recurrent, experts, altup
                   the builder's other operations, by topic
matrix_products    products with weights
model_graph        the result: a compute graph with its inputs, outputs and caches, for a given context
draft_head         draft heads: MTP (mtp); in files of their own (separate_heads): EAGLE-3 (eagle3), DFlash (dflash),
                   DSpark (dflash, dspark), assistants of Gemma 4 (gemma4_assistant)
"""
