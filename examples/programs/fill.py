"""Allocate device memory in blocks of 256 MiB until one is refused: `python3 fill.py`."""

import gpu

MIB = 1 << 20
BLOCK = 256 * MIB


def main() -> None:
    """Fill the memory."""
    device = gpu.Device()
    free, total = device.memory()
    print(f"{free // MIB} MiB free of {total // MIB} MiB")
    held = 0
    while True:
        try:
            device.allocate(BLOCK)
        except MemoryError as exc:
            print(f"{held // MIB} MiB allocated, then {exc}")
            return
        held += BLOCK


if __name__ == "__main__":
    main()
