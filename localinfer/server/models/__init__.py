"""The models of the server: their names, which are loaded, and what clients are told about them."""
