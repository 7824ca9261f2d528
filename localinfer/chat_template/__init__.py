"""Chat templates: from a conversation to the token ids of a prompt. Templates are rendered in a sandboxed child
process.
"""
