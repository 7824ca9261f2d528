"""The endpoints of llama.cpp's server that OpenAI's API lacks, one module for each topic."""
