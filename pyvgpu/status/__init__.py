"""The read-only status page: static files, and the JSON documents that it displays."""
