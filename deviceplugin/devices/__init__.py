"""The node's devices: discovery, health, cordons, and the API that allocates each of them."""
