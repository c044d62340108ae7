"""A CI job with a bug: it allocates memory until there is none left."""

import gpu

device = gpu.Device()
while True:
    device.allocate(1 << 30)
