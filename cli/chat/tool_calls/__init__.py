"""Tools of the chat: their definitions and their execution."""
