"""Measure the latency of a server's answers: `python3 ask.py PORT TIMES [WORDS]`.

It waits until the server has started, and sends requests at random times, as users do.
"""

import http.client
import random
import sys
import time

START_SECONDS = 60
WAIT_SECONDS = 0.1  # longest pause from an answer to the next request


def ask(port: int) -> float:
    """Send one request; return the seconds until its answer."""
    begun = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/")
        answer = connection.getresponse()
        answer.read()
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise SystemExit(f"port {port}: answers with {answer.status}")
    return time.monotonic() - begun


def wait_for_start(port: int) -> None:
    """Wait until the server answers; SystemExit if it does not start."""
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            ask(port)
            return
        except OSError as exc:
            if time.monotonic() > until:
                raise SystemExit(f"port {port}: {exc}") from exc
            time.sleep(0.1)


def main(port: int, times: int, words: str) -> None:
    """Send the requests and print the latencies."""
    wait_for_start(port)
    took = []
    for _ in range(times):
        time.sleep(random.uniform(0, WAIT_SECONDS))
        took.append(1000 * ask(port))
    took.sort()
    median, slow = took[times // 2], took[min(times - 1, times * 95 // 100)]
    print(
        f"{words}{times} answers: half of them within {median:.0f} ms, 95 % within {slow:.0f} ms"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), f"{sys.argv[3]}: " if sys.argv[3:] else "")
