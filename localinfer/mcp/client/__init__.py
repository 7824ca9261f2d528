"""MCP client: start the servers of a configuration file, and call their tools."""
