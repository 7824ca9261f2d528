"""The slash commands of the chat."""
