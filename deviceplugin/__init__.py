"""The node agent: advertises the node's devices to kubelet, and grants shares to containers."""
