"""Images and sounds as input: decoding, preprocessing, and encoders whose embeddings take the place of tokens.

media           decoded images and sounds
projector_file  the file of an encoder, checked
projector       encodes images for a language model
preprocessing/  from pixels to patches
encoders/       one file per projector type, written with encoder_graph/
"""
