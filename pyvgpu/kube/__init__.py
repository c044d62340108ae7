"""Kubernetes API client shared by the node agent and the controllers."""
