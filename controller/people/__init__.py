"""What `kubectl vgpu` shows people of a cluster: pure parts, which read objects and figures."""
