"""The HTTP server, with APIs that are compatible with OpenAI, Anthropic, llama.cpp and Ollama.

    AuthMiddleware -> RequestBodyMiddleware -> endpoint of the route -> Dispatcher -> Slot -> Model

`app.create_app` returns an ASGI application that any ASGI server can run; `run.serve` runs it with uvicorn. The event
loop handles requests and responses, and each slot evaluates its model in its own thread. HTTP needs the extra
`localinfer[serve]`. The parsing of requests and the dispatcher do not depend on HTTP; `localinfer.batch` uses them too.
"""
