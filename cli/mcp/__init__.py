"""MCP in commands: tools of MCP servers in a chat, and this machine's models as an MCP server."""
