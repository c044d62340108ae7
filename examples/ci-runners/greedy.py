"""A CI job with a bug: it allocates memory until there is none left."""

import gpu

device = gpu.Device()
while True:
    device.reserve(1 << 30)
