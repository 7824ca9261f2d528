"""What the chat shows: answers, Markdown, tables and the status line."""
