"""Tables of `kubectl vgpu`: pure functions over Kubernetes objects and agents' metrics."""
