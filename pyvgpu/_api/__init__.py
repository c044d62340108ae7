"""The messages that we exchange with kubelet, container runtimes and gpu-manager's clients.

What is in the .proto files here is the part of those APIs that we speak; the build generates the
modules ``*_pb2`` (messages) and ``*_pb2_grpc`` (stubs and servers) of them, into the installed
package. Names of packages, services and methods and the numbers and types of fields are the APIs';
tests/pyvgpu/test_api.py has them once more.
"""
