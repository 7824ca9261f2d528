"""What a request says: prompts, fields, tools, and the conversation that it continues."""
