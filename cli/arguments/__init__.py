"""Command-line preprocessing: aliases, flags of llama.cpp and Ollama, spelling suggestions and shell completion.

Most of these modules handle only the arguments as strings. `flags` declares options that several commands share,
`model_options` those of `localinfer.options`. The other options of a command are declared in its own module.
"""
