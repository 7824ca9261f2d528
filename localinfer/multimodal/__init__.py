"""Images and sounds as input: decoding, preprocessing, and encoders whose embeddings take the place of tokens.

media       decoded images and sounds
"""
