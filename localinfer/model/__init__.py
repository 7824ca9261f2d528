"""The Python API of a model: `load` returns a `Model`, which generates text and answers chats.

    with localinfer.load("smollm2") as model:
        print(model.chat([{"role": "user", "content": "Hello"}]).text)

base              the file, the tokenizer and the engine, which all other classes use
tokenization      tokenize, detokenize
text_generation   generate, chat, and their asynchronous twins, all made of the two streams
chat_prompts      render, truncate_messages
embeddings        embed, rerank
cache_files       save_cache, load_cache
model             Model: all of these, and stream, stream_chat, score, logits
loaded_model      load, the model that it returns, and its handles for concurrent runs
shared_resources  what a model and its handles share and create on first use
"""

from localinfer.model.loaded_model import LoadedModel, load
from localinfer.model.model import Model

__all__ = ["LoadedModel", "Model", "load"]
