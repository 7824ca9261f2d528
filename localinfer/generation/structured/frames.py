"""Frames between `worker.py` and `worker_process.py`. The first byte of a frame is its kind, except in those of the
vocabulary."""

REWRITE, VALIDATE, COMPILE, BEGIN = b"S", b"V", b"C", b"B"  # kinds of requests
TEXT, TOKEN, CLOSE, CHECK = b"X", b"T", b"L", b"K"
REPLY, QUESTION = b"R", b"Q"  # kinds of what a worker sends: its replies, and texts that it needs the token ids of
CONSUMED, STOPPED = 1, 2  # bits of a status
OPEN, CLOSING, UNKNOWN = b"O", b"C", b"U"  # kinds of closings
NO_TOKEN_ALLOWED = "NoExtensionBias"  # llguidance's failure if no token is allowed; its others are exceeded limits
INCOMPLETE = "it ends too early"  # a reply to CHECK
