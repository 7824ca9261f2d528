"""The caches of a sequence: keys and values in pages, and recurrent states.

sequence_cache     the interface of the caches of a sequence
kv_cache           keys and values: the positions of a sequence in a ring buffer
page_table         the pages of a sequence
held_pages         pages of a sequence that are copied later
ring_buffer        the memory of keys and values of all sequences
page_pool          allocation and reference counts of pages
recurrent_state    states of fixed size, with checkpoints
"""
