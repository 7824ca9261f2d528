"""Frames between `worker.py` and `worker_process.py`. The first byte of a frame is its kind, except in those of the
vocabulary."""

REWRITE, VALIDATE, COMPILE, BEGIN, TEXT, TOKEN, CHECK = b"S", b"V", b"C", b"B", b"X", b"T", b"K"  # kinds of requests
REPLY, QUESTION = b"R", b"Q"  # kinds of what a worker sends: its replies, and texts that it needs the token ids of
CONSUMED, STOPPED = 1, 2  # bits of a status
NO_TOKEN_ALLOWED = "NoExtensionBias"  # llguidance's failure if no token is allowed; its others are exceeded limits
INCOMPLETE = "it ends too early"  # a reply to CHECK
