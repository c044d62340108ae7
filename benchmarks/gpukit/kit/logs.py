"""Length of log.txt: a run leaves files of 16 MiB at most, whatever its stages print."""

import contextlib

MOST_OF_A_STAGE = 384 << 10  # bytes that are kept of what a stage printed: 12.4 MiB of all
MOST_BEFORE = 2 << 20  # of earlier runs into the same folder
MOST_WHILE_RUNNING = 64 << 20  # at which a stage is killed


def shorten(path, begin, most=MOST_OF_A_STAGE):
    """Keep of the file from byte *begin* on the first and the last *most* / 2 bytes.

    A line says how much was left out. OSError if the file cannot be written.
    """
    with path.open("r+b") as file:
        size = file.seek(0, 2) - begin
        if size <= most:
            return
        file.seek(-(most // 2), 2)
        last = file.read()
        file.seek(begin + most // 2)
        file.write(f"\n--- {size - 2 * (most // 2)} bytes are left out\n".encode())
        file.write(last)
        file.truncate()


def make_room(path):
    """Shorten what earlier runs have left, if there is anything that can be shortened."""
    with contextlib.suppress(OSError):
        shorten(path, 0, MOST_BEFORE)
