"""How the chat reads messages."""
