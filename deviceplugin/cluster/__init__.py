"""The agent's objects in the API server: its node, its node's pods, events and annotations."""
