"""The node agent: tells kubelet what devices there are, and gives each container its grant."""
