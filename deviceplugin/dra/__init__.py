"""The agent as a driver for dynamic resource allocation: claims in the place of kubelet's ids."""
