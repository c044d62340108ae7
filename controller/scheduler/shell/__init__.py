"""What acts: asks the API server, holds the lease, answers kube-scheduler; it decides nothing."""
