"""The runtime: executes a model's compute graph over sequences of tokens, with a thread pool and a batch scheduler.

compiled_graph     a compute graph with memory, kernels and threads
thread_pool        the threads that execute it
media_embeddings   embeddings that enter a sequence in place of tokens
sequence           token ids and their caches
model_runner       evaluates batches of any sequences
sequence_engine    the interface of engines, which evaluate one sequence each
engine             the engine of a loaded model
scheduled_engine   an engine whose requests the scheduler batches with others
scheduler          continuous batching
modifiers          what sequences have beside tokens: scales of LoRA adapters, and hooks
hooked_batch       the graph that is cut at points, and hooks on a batch
trace              what hooks record
prefix_cache       reuse of cached prefixes, and eviction
snapshot           the caches of a sequence in a file
probe              access to intermediate values, for quantization
"""
