"""Terminate sidecars once a pod's main containers are done, so that the pod and Job complete."""
