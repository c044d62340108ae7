"""What kubelet says of this node: its checkpoint, its PodResources API, and the ids of devices."""
