"""The HTTP server, and what it has loaded."""
