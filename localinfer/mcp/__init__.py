"""Model Context Protocol (MCP), with the library `mcp`: `client/` calls tools of MCP servers, `server/` is one."""
