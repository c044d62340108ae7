"""Send completions to the engine: `python3 load.py PORT CLIENTS REQUESTS [WORDS]`.

Each client sends its requests one after the other, as users of a chat do.
"""

import concurrent.futures
import json
import sys
import time
import urllib.request

TOKENS = 16


def client(port: int, requests: int) -> list[float]:
    """Send requests; return the seconds that each took."""
    took = []
    for _ in range(requests):
        begun = time.monotonic()
        body = json.dumps({"max_tokens": TOKENS}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/completions", body) as answer:
            generated = json.load(answer)["usage"]["completion_tokens"]
        if generated != TOKENS:
            raise SystemExit(f"{generated} tokens: must be {TOKENS}")
        took.append(time.monotonic() - begun)
    return took


def main(port: int, clients: int, requests: int, words: str) -> None:
    """Run the clients at once, and print throughput and latency."""
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        jobs = [pool.submit(client, port, requests) for _ in range(clients)]
        took = sorted(seconds for job in jobs for seconds in job.result())
    rate = len(took) * TOKENS / (time.monotonic() - begun)
    middle, last = took[len(took) // 2], took[-1]
    print(
        f"{words}: {len(took)} requests, {rate:.0f} tokens/s, "
        f"median {middle * 1000:.0f} ms, longest {last * 1000:.0f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), words=sys.argv[4] if sys.argv[4:] else "load")
