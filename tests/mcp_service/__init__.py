"""A real MCP server with a counted effect, over stdio and streamable HTTP, and ways to use it."""
