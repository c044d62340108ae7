"""What the agent shows: usage, metrics and the documents of its status page."""
