"""Messages of pyvgpu/_api have the field numbers and types of the original APIs.

Written down from the APIs themselves: Kubernetes 1.36 (k8s.io/kubelet and k8s.io/cri-api) and
gpu-manager. A field that has another number is no error on the wire: it is not seen.
"""

import pytest
from google.protobuf import descriptor

from pyvgpu._api import (
    cri_pb2,
    device_plugin_pb2,
    display_pb2,
    dra_health_pb2,
    dra_pb2,
    plugin_registration_pb2,
    pod_resources_pb2,
)

MODULES = {
    "v1beta1": device_plugin_pb2,
    "v1": pod_resources_pb2,
    "pluginregistration": plugin_registration_pb2,
    "k8s.io.kubelet.pkg.apis.dra.v1": dra_pb2,
    "v1alpha1": dra_health_pb2,
    "runtime.v1": cri_pb2,
    "display": display_pb2,
}
KINDS = {
    getattr(descriptor.FieldDescriptor, f"TYPE_{type_name.upper()}"): type_name
    for type_name in (
        "bool",
        "bytes",
        "enum",
        "float",
        "int32",
        "int64",
        "message",
        "string",
        "uint32",
    )
}
# By package: each message, its fields by number; * is a repeated field, {} a map.
MESSAGES = {
    "v1beta1": {
        "Empty": "",
        "RegisterRequest": "1=string 2=string 3=string 4=message",
        "DevicePluginOptions": "1=bool 2=bool",
        "ListAndWatchResponse": "1=message*",
        "Device": "1=string 2=string 3=message",
        "TopologyInfo": "1=message*",
        "NUMANode": "1=int64",
        "PreferredAllocationRequest": "1=message*",
        "ContainerPreferredAllocationRequest": "1=string* 2=string* 3=int32",
        "PreferredAllocationResponse": "1=message*",
        "ContainerPreferredAllocationResponse": "1=string*",
        "AllocateRequest": "1=message*",
        "ContainerAllocateRequest": "1=string*",
        "AllocateResponse": "1=message*",
        "ContainerAllocateResponse": (
            "1={string:string} 2=message* 3=message* 4={string:string} 5=message*"
        ),
        "Mount": "1=string 2=string 3=bool",
        "DeviceSpec": "1=string 2=string 3=string",
        "CDIDevice": "1=string",
        "PreStartContainerRequest": "1=string*",
        "PreStartContainerResponse": "",
    },
    "v1": {
        "ListPodResourcesRequest": "",
        "ListPodResourcesResponse": "1=bytes*",
        "PodResources": "1=string 2=string 3=message*",
        "ContainerResources": "1=string 2=message*",
        "ContainerDevices": "1=string 2=string*",
    },
    "pluginregistration": {
        "InfoRequest": "",
        "PluginInfo": "1=string 2=string 3=string 4=string*",
        "RegistrationStatus": "1=bool 2=string",
        "RegistrationStatusResponse": "",
    },
    "k8s.io.kubelet.pkg.apis.dra.v1": {
        "Claim": "1=string 2=string 3=string",
        "NodePrepareResourcesRequest": "1=message*",
        "NodePrepareResourcesResponse": "1={string:message}",
        "NodePrepareResourceResponse": "1=message* 2=string",
        "Device": "1=string* 2=string 3=string 4=string* 5=string",
        "NodeUnprepareResourcesRequest": "1=message*",
        "NodeUnprepareResourcesResponse": "1={string:message}",
        "NodeUnprepareResourceResponse": "1=string",
    },
    "v1alpha1": {
        "NodeWatchResourcesRequest": "",
        "NodeWatchResourcesResponse": "1=message*",
        "DeviceHealth": "1=message 2=enum 3=int64 5=string",
        "DeviceIdentifier": "1=string 2=string",
    },
    "runtime.v1": {
        "VersionRequest": "",
        "VersionResponse": "1=string 2=string 3=string 4=string",
        "ContainerStateValue": "1=enum",
        "ContainerFilter": "2=message 4={string:string}",
        "ListContainersRequest": "1=message",
        "ListContainersResponse": "1=message*",
        "ContainerMetadata": "1=string 2=uint32",
        "Container": (
            "1=string 2=string 3=message 6=enum 7=int64 8={string:string} 9={string:string}"
        ),
        "ContainerStatusRequest": "1=string",
        "ContainerStatusResponse": "1=message",
        "ContainerStatus": "1=string 2=message 3=enum 6=int64 7=int32",
        "StopContainerRequest": "1=string 2=int64",
        "StopContainerResponse": "",
        "ExecSyncRequest": "1=string 2=string* 3=int64",
        "ExecSyncResponse": "1=bytes 2=bytes 3=int32",
        "PodSandboxStatusRequest": "1=string",
        "PodSandboxStatusResponse": "1=message",
        "PodSandboxMetadata": "1=string 2=string 3=string",
        "PodSandboxStatus": "2=message 5=message",
        "PodSandboxNetworkStatus": "1=string",
        "GetEventsRequest": "",
        "ContainerEventResponse": "1=string 2=enum 3=int64 4=message 5=message*",
        "ImageSpec": "1=string",
        "Image": "1=string",
        "ImageStatusRequest": "1=message",
        "ImageStatusResponse": "1=message",
        "NamespaceOption": "1=enum",
        "LinuxSandboxSecurityContext": "1=message",
        "LinuxPodSandboxConfig": "2=message",
        "PodSandboxConfig": "1=message 3=string 8=message",
        "RunPodSandboxRequest": "1=message",
        "RunPodSandboxResponse": "1=string",
        "StopPodSandboxRequest": "1=string",
        "StopPodSandboxResponse": "",
        "RemovePodSandboxRequest": "1=string",
        "RemovePodSandboxResponse": "",
        "CDIDevice": "1=string",
        "ContainerConfig": "1=message 2=message 3=string* 17=message*",
        "CreateContainerRequest": "1=string 2=message 3=message",
        "CreateContainerResponse": "1=string",
        "StartContainerRequest": "1=string",
        "StartContainerResponse": "",
        "RemoveContainerRequest": "1=string",
        "RemoveContainerResponse": "",
    },
    "display": {
        "GraphResponse": "1=string",
        "UsageResponse": "1={string:message}",
        "ContainerStat": "1={string:message} 2=string 3=string 4=string 5={string:message}",
        "Devices": "1=message*",
        "DeviceInfo": "1=string 2=string 10=float 11=float 12=int32*",
        "Spec": "1=float 2=float",
        "VersionResponse": "1=string",
    },
}
METHODS = {  # * for a stream of answers
    "v1beta1": (
        "Registration/Register",
        "DevicePlugin/GetDevicePluginOptions",
        "DevicePlugin/ListAndWatch*",
        "DevicePlugin/GetPreferredAllocation",
        "DevicePlugin/Allocate",
        "DevicePlugin/PreStartContainer",
    ),
    "v1": ("PodResourcesLister/List",),
    "pluginregistration": (
        "Registration/GetInfo",
        "Registration/NotifyRegistrationStatus",
    ),
    "k8s.io.kubelet.pkg.apis.dra.v1": (
        "DRAPlugin/NodePrepareResources",
        "DRAPlugin/NodeUnprepareResources",
    ),
    "v1alpha1": ("DRAResourceHealth/NodeWatchResources*",),
    "runtime.v1": (
        "RuntimeService/Version",
        "RuntimeService/ListContainers",
        "RuntimeService/ContainerStatus",
        "RuntimeService/StopContainer",
        "RuntimeService/ExecSync",
        "RuntimeService/PodSandboxStatus",
        "RuntimeService/GetContainerEvents*",
        "RuntimeService/RunPodSandbox",
        "RuntimeService/StopPodSandbox",
        "RuntimeService/RemovePodSandbox",
        "RuntimeService/CreateContainer",
        "RuntimeService/StartContainer",
        "RuntimeService/RemoveContainer",
        "ImageService/ImageStatus",
    ),
    "display": (
        "GPUDisplay/PrintGraph",
        "GPUDisplay/PrintUsages",
        "GPUDisplay/Version",
    ),
}


def kind(field):
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return f"{{{kind(key)}: {kind(value)}}}"
    return KINDS[field.type] + ("*" if field.is_repeated else "")


def messages(module):
    return {
        name: " ".join(f"{field.number}={kind(field).replace(' ', '')}" for field in one.fields)
        for name, one in module.DESCRIPTOR.message_types_by_name.items()
    }


@pytest.mark.parametrize("package", MODULES)
def test_fields_have_the_numbers_and_types_of_the_api(package):
    assert MODULES[package].DESCRIPTOR.package == package
    assert messages(MODULES[package]) == MESSAGES[package]


@pytest.mark.parametrize("package", MODULES)
def test_services_have_the_methods_of_the_api(package):
    found = [
        f"{name}/{method.name}{'*' * method.server_streaming}"
        for name, one in MODULES[package].DESCRIPTOR.services_by_name.items()
        for method in one.methods
    ]
    assert found == list(METHODS[package])
