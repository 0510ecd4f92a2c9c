"""The real server process, driven over HTTP and web socket and killed at random times."""
