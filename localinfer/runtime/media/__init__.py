"""The images and sounds of sequences: the rows that take the place of tokens, and their positions."""
