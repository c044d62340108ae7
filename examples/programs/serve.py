"""HTTP inference server on a GPU: `python3 serve.py [PORT]`; the default port is 8000.

If PyTorch is installed and has a GPU, the model is PyTorch's; otherwise it is a stand-in that only
keeps the device busy. `/` runs the model, `/healthz` only reports that the server runs.
"""

import http.server
import json
import signal
import sys
import threading

import gpu

SIZE = 4096  # of each layer


class StandIn:
    """A model's load on the device, through CUDA's driver API only."""

    def __init__(self) -> None:
        self._device = gpu.Device()
        self._layer = self._device.floats(SIZE * SIZE, 0.5)

    def answer(self) -> float:
        """Keep the device busy as a model would."""
        self._device.use()
        self._device.compute(milliseconds=20)
        return self._device.read(self._layer, 1)[0]

    def memory(self) -> tuple[int, int]:
        """Return the device's free and total bytes."""
        self._device.use()
        return self._device.memory()


class Torch:
    """A model of some PyTorch layers."""

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise ImportError("PyTorch has no GPU here")
        self._torch = torch
        layers = [torch.nn.Linear(SIZE, SIZE) for _ in range(8)]
        self._layers = torch.nn.Sequential(*layers).cuda().eval()

    def answer(self) -> float:
        """Run the layers."""
        with self._torch.inference_mode():
            return float(self._layers(self._torch.ones(64, SIZE, device="cuda")).mean())

    def memory(self) -> tuple[int, int]:
        """Return the device's free and total bytes."""
        return self._torch.cuda.mem_get_info()


def load() -> StandIn | Torch:
    """Return the PyTorch model if possible, otherwise the stand-in."""
    try:
        return Torch()
    except ImportError:
        return StandIn()


def handler(model: StandIn | Torch) -> type[http.server.BaseHTTPRequestHandler]:
    """Return the HTTP handler for *model*."""
    turn = threading.Lock()  # the model runs one request at a time

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # http.server requires this name
            said = {"model": type(model).__name__}
            if self.path != "/healthz":
                with turn:
                    said |= {"answer": model.answer(), "memory": model.memory()[1]}
            body = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do not log requests."""

    return Handler


def main(port: int) -> None:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    model = load()
    server = http.server.ThreadingHTTPServer(("", port), handler(model))
    print(f"{type(model).__name__} answers on port {server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 8000)
