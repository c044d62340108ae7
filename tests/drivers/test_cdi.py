"""The CDI specification of a real driver's mirror is valid and works in containerd."""

import dataclasses
import functools
import json
import operator

import containerd
import debian
import jsonschema
import pytest
import referencing.jsonschema
import simulated_node

from pyvgpu import shim as built
from pyvgpu.volumes import cdi, node_mirror, survey

pytestmark = pytest.mark.drivers

SCHEMA = "golang-github-container-orchestrated-devices-container-device-interface-dev"
DEVICES = {"nvidia0": (195, 0), "nvidia-uvm": (508, 0), "nvidiactl": (195, 255)}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A containerd with an empty CDI directory at first."""
    with containerd.running(tmp_path_factory.mktemp("containerd")) as running:
        yield running


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory):
    """A node with a mirror of driver 550, three device nodes, and a CDI specification."""
    folder = tmp_path_factory.mktemp("node")
    simulated_node.make_nodes(folder / "dev", DEVICES)
    found = survey.find_installation(
        debian.unpacked("trixie", "libcuda1", "libnvidia-ml1", "nvidia-smi")
    )
    kept = node_mirror.NodeMirror(folder / "output", built.shim_library(), folder / "cdi.json")
    assert kept.mirror(dataclasses.replace(found, root=folder)).specification == ""
    return kept


@pytest.fixture(scope="module")
def validator():
    """A validator for the published CDI schema."""
    (folder,) = debian.unpacked("bookworm", SCHEMA, component="main").rglob("schema")
    schema, definitions = (
        json.loads((folder / name).read_text()) for name in ("schema.json", "defs.json")
    )
    known = referencing.jsonschema.DRAFT7.create_resource(definitions)
    registry = referencing.Registry().with_resource("defs.json", known)
    return jsonschema.Draft7Validator(schema, registry=registry)


def test_specification_is_valid_by_the_published_schema(mirrored, validator):
    document = json.loads(mirrored.specification.read_text())
    assert [str(error) for error in validator.iter_errors(document)] == []
    names = {device["name"] for device in document["devices"]}
    assert names == {"shared", "exclusive", "nvidia0", "library-path"}


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("cdiVersion",), 5),
        (("devices", 0, "name"), None),
        (("devices", -1, "containerEdits", "mounts", 0, "options"), "ro"),
    ],
)
def test_schema_rejects_errors(mirrored, validator, path, wrong):
    document = json.loads(mirrored.specification.read_text())
    *folders, last = path
    functools.reduce(operator.getitem, folders, document)[last] = wrong
    assert not validator.is_valid(document)


@pytest.fixture(scope="module")
def given(server, mirrored):
    """The containerd, with the node's specification in its CDI directory."""
    document = json.loads(mirrored.specification.read_text())
    cdi.write(document, server.specifications / "pyvgpu.io-driver.json")
    return server


def test_container_gets_the_volume_read_only(given, mirrored):
    with given.container("pyvgpu.io/driver=shared") as container:
        listed = given.execute(container, "ls", "/usr/local/nvidia/lib64", "/usr/bin")
        assert {"libcuda.so.1", "libnvidia-ml.so.1", "nvidia-smi"} <= set(listed.split())
        inside = given.execute(
            container, "head", "-c", "4", "/usr/local/nvidia/origin/libcuda-origin.so.1"
        )
        assert inside == "\x7fELF"
        for place in ("/usr/local/nvidia/new", "/usr/local/nvidia/lib64/libcuda.so.1"):
            said = given.execute(container, "sh", "-c", f"echo x > {place}")
            assert "Read-only file system" in said
    assert not (mirrored.current() / "shared/new").exists()


def test_container_gets_its_device_nodes_and_variables(given):
    wanted = [f"pyvgpu.io/driver={name}" for name in ("shared", "nvidia0", "library-path")]
    with given.container(*wanted) as container:
        assert DEVICES.keys() <= set(given.execute(container, "ls", "/dev").split())
        variables = given.execute(container, "env").splitlines()
        assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64" in variables
        assert "NVIDIA_VISIBLE_DEVICES=void" in variables
    with given.container("pyvgpu.io/driver=shared") as container:
        assert "nvidia0" not in given.execute(container, "ls", "/dev").split()
        assert "LD_LIBRARY_PATH" not in given.execute(container, "env")


def test_device_outside_the_specification_is_refused(given):
    with (
        pytest.raises(containerd.RefusedError, match="unresolvable CDI devices"),
        given.container("pyvgpu.io/driver=nvidia1"),
    ):
        pass
