"""Mapping of processes to containers, in every format of cgroup paths and mounts."""

import os
import subprocess
import sys
from pathlib import PurePosixPath

import granted
import headless
import pytest
import rights

from pyvgpu.deviceplugin.containers import process_owner
from pyvgpu.machine import mounts

UID = "0f3c4a1e-5b7d-4c2a-9e8f-1a2b3c4d5e6f"
UNIT = UID.replace("-", "_")
STATIC = "b2f1" * 8
ID = "ab12" * 16


@pytest.mark.parametrize(
    ("text", "pod", "container"),
    [
        pytest.param(
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNIT}.slice/"
            f"cri-containerd-{ID}.scope",
            UID,
            ID,
            id="v2, systemd, containerd",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{UNIT}.slice/crio-{ID}.scope",
            UID,
            ID,
            id="v2, systemd, CRI-O, guaranteed",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{UNIT}.slice/crio-{ID}.scope/container",
            UID,
            ID,
            id="v2, CRI-O with a cgroup of the container's own",
        ),
        pytest.param(f"0::/kubepods/besteffort/pod{UID}/{ID}", UID, ID, id="v2, cgroupfs"),
        pytest.param(
            f"0::/kubepods/pod{UID}/{ID}/init.scope", UID, ID, id="a systemd in the container"
        ),
        pytest.param(
            f"12:memory:/kubepods/burstable/pod{UID}/{ID}\n"
            f"1:name=systemd:/kubepods/burstable/pod{UID}/{ID}\n0::/",
            UID,
            ID,
            id="v1, cgroupfs",
        ),
        pytest.param(
            "11:cpu,cpuacct:/\n"
            f"4:memory:/kubepods.slice/kubepods-pod{UNIT}.slice/docker-{ID}.scope",
            UID,
            ID,
            id="v1, systemd, Docker, some controllers elsewhere",
        ),
        pytest.param(
            f"0::/system.slice/containerd.service/kubepods-burstable-pod{UNIT}.slice:"
            f"cri-containerd:{ID}",
            UID,
            ID,
            id="two drivers at odds",
        ),
        pytest.param(
            f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
            f"kubelet-kubepods-besteffort-pod{UNIT}.slice/cri-containerd-{ID}.scope",
            UID,
            ID,
            id="kubelet in a slice of its own",
        ),
        pytest.param(
            f"0::/../../kubepods-burstable-pod{UNIT}.slice/cri-containerd-{ID}.scope",
            UID,
            ID,
            id="seen from another cgroup namespace",
        ),
        pytest.param(f"0::/kubepods/pod{STATIC}/{ID}", STATIC, ID, id="a static pod"),
        pytest.param(
            f"0::/kubepods/pod{UID}/crio-conmon-{ID}.scope", UID, "", id="CRI-O's own process"
        ),
        pytest.param(f"0::/kubepods/pod{UID}", UID, "", id="the pod's own"),
        pytest.param("0::/system.slice/sshd.service", "", "", id="the node"),
        pytest.param("0::/user.slice/podman", "", "", id="no pod of that name"),
        pytest.param(f"0::/machine.slice/libpod-{ID}.scope", "", "", id="a container of no pod"),
        pytest.param("", "", "", id="nothing"),
        pytest.param("nonsense\n::\n", "", "", id="no lines of cgroups"),
    ],
)
def test_cgroup_path_names_pod_and_container(text, pod, container):
    assert process_owner.of_cgroup(text) == (pod, container)


GRANT = "0123456789abcdef"
OTHER = "fedcba9876543210"


REGISTRY = mounts.Origin("8:1", PurePosixPath("/var/lib/pyvgpu/grants"))


def mounted(root, point="/etc/pyvgpu", device="8:1"):
    return f"1 2 {device} {root} {point} ro,nosuid - ext4 /dev/sda1 rw\n".encode()


def own(grant):
    return mounted(REGISTRY.path / grant)


@pytest.mark.parametrize(
    ("mountinfo", "expected"),
    [
        pytest.param(own(GRANT), GRANT, id="its folder"),
        pytest.param(own(OTHER) + own(GRANT), GRANT, id="the last one"),
        pytest.param(own(GRANT) + mounted("/tmp/mine"), "", id="hidden"),
        pytest.param(mounted(REGISTRY.path / GRANT, "/mnt"), "", id="elsewhere"),
        pytest.param(mounted(f"/var/lib/pyvgpu/other/{GRANT}"), "", id="of no registry"),
        pytest.param(
            mounted(
                f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/v/grants/{OTHER}"
            ),
            "",
            id="a volume of the pod, with a subPath like a registry",
        ),
        pytest.param(
            mounted(REGISTRY.path / OTHER, device="0:77"),
            "",
            id="a file system of the tenant's own",
        ),
        pytest.param(own("nonsense"), "", id="no grant"),
        pytest.param(b"", "", id="nothing"),
        pytest.param(b"1 2 3\n\xff\xfe\n", "", id="no lines of mounts"),
    ],
)
def test_mounts_name_the_grant(mountinfo, expected):
    assert process_owner.grant_of(mountinfo, REGISTRY) == expected


@rights.needs_mounts
def test_process_in_a_container_is_found_by_its_mounts(places, machine, driver, tmp_path):
    grant = granted.grant_of(granted.share_of(machine))
    places.make(grant, driver)
    edits = granted.edits_of(places.specification(grant.id))
    source = "answer(os.getpid())\nsys.stdin.read()"
    with granted.start(edits, tmp_path / "root", source) as process:
        pid = int(process.stdout.readline())
        found = process_owner.whose(pid, mounts.origin(places.folder))
        assert found
        assert found.grant == grant.id
        process.stdin.close()
    assert process_owner.whose(os.getpid(), mounts.origin(places.folder)).grant == ""


def test_ended_process_has_no_owner(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert process_owner.whose(process.pid, mounts.origin(tmp_path)) is None


def test_process_without_its_main_thread_is_found(tmp_path):
    with headless.running() as pid:
        assert process_owner.whose(pid, mounts.origin(tmp_path)) is not None
