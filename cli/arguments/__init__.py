"""Command-line preprocessing: aliases, flags of llama.cpp and Ollama, spelling suggestions and shell completion.

These modules handle only the arguments as strings. The options of a command are declared in its own module.
"""
