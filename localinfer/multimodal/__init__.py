"""Images and sounds as input: decoding, preprocessing, and encoders whose embeddings take the place of tokens.

media            decoded images and sounds
reading          decoding of files: image_decoding, sound_decoding (in a child process), content_type
preprocessing/   from pixels to what an encoder reads
sounds/          spectrograms, and encoders of sounds
projector_file   the file of an encoder, checked
projector        encodes images and sounds for a language model
encoders/        one file per projector type, written with encoder_graph/
"""
