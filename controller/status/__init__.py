"""Read-only status page of the cluster: device allocations, pending pods and the reasons."""
