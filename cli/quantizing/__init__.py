"""The command that writes models in smaller types, and what it draws meanwhile."""
