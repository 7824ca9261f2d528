"""OpenAI's API, one module for each endpoint. Extensions follow llama.cpp's server."""
