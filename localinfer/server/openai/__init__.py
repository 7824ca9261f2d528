"""OpenAI's API: a file for each kind of question. What it leaves open is as llama.cpp's server has it."""
