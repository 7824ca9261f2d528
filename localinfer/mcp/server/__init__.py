"""MCP server: the models of this machine as tools."""
