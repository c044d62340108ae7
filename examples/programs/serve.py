"""Answer over HTTP by a model on a device: `python3 serve.py [PORT]`, 8000 where none is said.

Where PyTorch is installed and has a GPU, the model is one of PyTorch's; else it is a stand-in that
takes as much of the device's time. `/` asks the model, `/healthz` only whether there is one.
"""

import http.server
import json
import signal
import sys
import threading

import gpu

SIZE = 4096  # of each layer


class StandIn:
    """What takes the time of a model, by CUDA's driver alone."""

    def __init__(self) -> None:
        self._device = gpu.Device()
        self._layer = self._device.floats(SIZE * SIZE, 0.5)

    def answer(self) -> float:
        """Compute as a model would."""
        self._device.use()
        self._device.compute(milliseconds=20)
        return self._device.read(self._layer, 1)[0]

    def memory(self) -> tuple[int, int]:
        """Return how many bytes of the device are free, and how many there are."""
        self._device.use()
        return self._device.memory()


class Torch:
    """Some layers of PyTorch's."""

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise ImportError("PyTorch has no GPU here")
        self._torch = torch
        layers = [torch.nn.Linear(SIZE, SIZE) for _ in range(8)]
        self._layers = torch.nn.Sequential(*layers).cuda().eval()

    def answer(self) -> float:
        """Ask the layers."""
        with self._torch.inference_mode():
            return float(self._layers(self._torch.ones(64, SIZE, device="cuda")).mean())

    def memory(self) -> tuple[int, int]:
        """Return how many bytes of the device are free, and how many there are."""
        return self._torch.cuda.mem_get_info()


def load() -> StandIn | Torch:
    """Return a model, the better one where it can be had."""
    try:
        return Torch()
    except ImportError:
        return StandIn()


def handler(model: StandIn | Torch) -> type[http.server.BaseHTTPRequestHandler]:
    """Return what answers by *model*."""
    turn = threading.Lock()  # the model answers one after the other

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the library's name
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
            """Say nothing of each question."""

    return Handler


def main(port: int) -> None:
    """Answer until it is told to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    model = load()
    server = http.server.ThreadingHTTPServer(("", port), handler(model))
    print(f"{type(model).__name__} answers on port {server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 8000)
