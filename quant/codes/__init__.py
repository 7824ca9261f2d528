"""How the codes of weights lie in blocks, and the words with which a format describes its own. Knows no format."""
