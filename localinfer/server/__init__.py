"""Models for other programs: an HTTP server that speaks as OpenAI's, llama.cpp's and Ollama's do.

    gate -> intake -> one function for each address -> desk -> slots -> a model
    (who may ask) (what, and is somebody still there)  (who is next)

`app.application` is an ASGI application that any server can run; `run.serve` runs it with uvicorn. The event loop reads
and writes; models compute in threads of their own. HTTP needs the extra `localinfer[serve]`; what
knows nothing of it, from questions to the desk, serves `localinfer.batch`, too.
"""
