"""No-op device plugin and DRA driver, for comparison. Argument: the path of its socket."""

from __future__ import annotations

import concurrent.futures
import sys

import grpc

from pyvgpu._api import device_plugin_pb2 as api
from pyvgpu._api import device_plugin_pb2_grpc as api_grpc
from pyvgpu._api import dra_pb2, dra_pb2_grpc


class Plugin(api_grpc.DevicePluginServicer):
    """Answers each call with the smallest valid response."""

    def GetDevicePluginOptions(self, *_: object) -> api.DevicePluginOptions:  # noqa: N802
        """Request PreStartContainer calls."""
        return api.DevicePluginOptions(pre_start_required=True)

    def Allocate(self, *_: object) -> api.AllocateResponse:  # noqa: N802
        """Give nothing."""
        return api.AllocateResponse(container_responses=[api.ContainerAllocateResponse()])

    def PreStartContainer(self, *_: object) -> api.PreStartContainerResponse:  # noqa: N802
        """Let it start."""
        return api.PreStartContainerResponse()


class Driver(dra_pb2_grpc.DRAPluginServicer):
    """The same for claims."""

    def NodePrepareResources(self, *_: object) -> dra_pb2.NodePrepareResourcesResponse:  # noqa: N802
        """Prepare nothing."""
        return dra_pb2.NodePrepareResourcesResponse()


def main() -> None:
    """Answer each call of kubelet with the smallest valid response."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(64))
    api_grpc.add_DevicePluginServicer_to_server(Plugin(), server)
    dra_pb2_grpc.add_DRAPluginServicer_to_server(Driver(), server)
    server.add_insecure_port(f"unix:{sys.argv[1]}")
    server.start()
    print("serves", flush=True)
    sys.stdin.read()  # until the parent process stops it or ends


if __name__ == "__main__":
    main()
