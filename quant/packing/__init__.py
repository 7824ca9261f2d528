"""How block formats pack codes and scales: descriptions, unpacking and packing of nibbles and bit planes, codebooks."""
