"""gRPC messages of kubelet's APIs, the CRI and gpu-manager's display service.

The .proto files have the part of those APIs that we use; the build generates the modules ``*_pb2``
(messages) and ``*_pb2_grpc`` (stubs and servers) from them, into the installed package. Names of
packages, services and methods and the numbers and types of fields are defined by the APIs;
tests/pyvgpu/test_api.py repeats them.
"""
