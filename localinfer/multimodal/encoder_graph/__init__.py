"""Encoders as compute graphs: the builder that families are written with, what the host computes, and their execution.

encoder_builder     records operations on rows of patches as ops, for one size of image
constants           contents of memory that are written once
row_attention       attention of rows to all others, or to those of a window
bounds              checks of sizes before an op is recorded
transformer         the layers that most encoders share
clipped_products    products whose input and output are clipped
feature_maps        convolutions over maps of several sizes
positions           position embeddings and rotation angles of a grid of patches
zero_rows           rows of zeros behind those of a buffer
segment_anything    the encoder that DeepSeek-OCR begins with
row_order           index tables: blocks of patches that are merged, windows
compiled_encoder    a graph in memory, which encodes images of one size
"""
