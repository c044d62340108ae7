"""The client of the Kubernetes API server that the node agent and the controllers share."""
