"""A device plugin and DRA driver of nothing, for comparison. Its argument: where to serve."""

from __future__ import annotations

import concurrent.futures
import sys

import grpc

from pyvgpu import wire
from pyvgpu.deviceplugin import messages
from pyvgpu.deviceplugin.dra import messages as dra


def main() -> None:
    """Answer each call of kubelet's with the least that it takes."""
    answers = {
        "GetDevicePluginOptions": messages.OPTIONS,
        "Allocate": wire.encode({1: [b""]}),
        "PreStartContainer": messages.NOTHING,
    }
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(64))
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(lambda _request, _context, it=it: it)
        for name, it in answers.items()
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(messages.SERVICE, handlers),)
    )
    service = dra.SERVICE.removeprefix("/")
    claims = {"NodePrepareResources": grpc.unary_unary_rpc_method_handler(lambda *_: dra.NOTHING)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, claims),))
    server.add_insecure_port(f"unix:{sys.argv[1]}")
    server.start()
    print("serves", flush=True)
    sys.stdin.read()  # until whoever started it ends it, or is gone


if __name__ == "__main__":
    main()
