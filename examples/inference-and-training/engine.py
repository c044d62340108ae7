"""LLM inference server in the manner of vLLM: `python3 engine.py PORT [--memory-utilization 0.9]`.

At the start it measures the free memory of its GPU and reserves most of it for the KV cache, in
blocks. Requests join the running batch between two decode steps, and leave it when they have all
their tokens; a request that finds no free block waits. `POST /v1/completions` with
`{"max_tokens": 16}` returns when they are generated. The model is a stand-in: each decode step
keeps the GPU busy, and the tokens have no meaning.
"""

import argparse
import collections
import http.server
import json
import math
import signal
import threading

import gpu

BLOCK_BYTES = 64 << 20  # of the KV cache
BLOCK_TOKENS = 16
STEP_MILLISECONDS = 10  # of one decode step, for the whole batch
BATCH = 16  # requests in it, at most


class Sequence:
    """A request and the tokens that it has so far."""

    def __init__(self, tokens: int) -> None:
        self.wanted = tokens
        self.generated = 0
        self.done = threading.Event()

    @property
    def blocks(self) -> int:
        """The KV cache blocks that the request takes."""
        return math.ceil(self.wanted / BLOCK_TOKENS)


class Engine:
    """The model, its KV cache, and the batch that it decodes."""

    def __init__(self, utilization: float) -> None:
        self._device = gpu.Device()
        free, _ = self._device.memory()
        self.blocks = int(free * utilization) // BLOCK_BYTES
        if self.blocks < 1:
            raise SystemExit(f"{free >> 20} MiB are free: the KV cache needs {BLOCK_BYTES >> 20}")
        self._cache = self._device.allocate(self.blocks * BLOCK_BYTES)
        self._free = self.blocks
        self._waiting: collections.deque[Sequence] = collections.deque()
        self._batch: list[Sequence] = []
        self._changed = threading.Condition()

    def generate(self, tokens: int) -> Sequence:
        """Wait until a request has all its tokens. ValueError if the KV cache is too small."""
        sequence = Sequence(tokens)
        if not 0 < sequence.blocks <= self.blocks:
            raise ValueError(f"max_tokens: must be 1 to {self.blocks * BLOCK_TOKENS}, such as 16")
        with self._changed:
            self._waiting.append(sequence)
            self._changed.notify()
        sequence.done.wait()
        return sequence

    def decode(self) -> None:
        """Generate tokens for all requests, for ever."""
        self._device.use()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._batch)
                self._admit()
            self._device.compute(STEP_MILLISECONDS)
            with self._changed:
                for sequence in self._batch:
                    sequence.generated += 1
                    if sequence.generated == sequence.wanted:
                        self._free += sequence.blocks
                        sequence.done.set()
                self._batch = [each for each in self._batch if not each.done.is_set()]

    def _admit(self) -> None:
        """Let waiting requests join the batch while it has room and blocks are free."""
        while self._waiting and len(self._batch) < BATCH:
            if self._waiting[0].blocks > self._free:
                return
            sequence = self._waiting.popleft()
            self._free -= sequence.blocks
            self._batch.append(sequence)


def handler(engine: Engine) -> type[http.server.BaseHTTPRequestHandler]:
    """Return the HTTP handler for *engine*."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # http.server requires this name
            try:
                given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                sequence = engine.generate(int(given.get("max_tokens", 16)))
            except (ValueError, TypeError, AttributeError) as exc:
                self.send_error(400, str(exc))
                return
            body = json.dumps({"usage": {"completion_tokens": sequence.generated}}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do not log requests."""

    return Handler


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--memory-utilization", type=float, default=0.9)
    options = parser.parse_args()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    engine = Engine(options.memory_utilization)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", options.port), handler(engine))
    threading.Thread(target=engine.decode, daemon=True).start()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"{engine.blocks} KV cache blocks, port {server.server_port}", flush=True)
    ended.wait()


if __name__ == "__main__":
    main()
