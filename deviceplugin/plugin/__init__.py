"""The device plugins: gRPC servers that kubelet calls, and their registration."""
