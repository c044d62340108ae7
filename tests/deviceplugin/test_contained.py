"""A program in a grant's container gets exactly the grant."""

import dataclasses
import json

import granted
import pytest
import rights
from granted import GIB, grant_of, share_of

MIB = 1 << 20

PROGRAM = """
context()
held = []
while True:
    result, pointer = alloc(256 * MIB)
    if result:
        break
    held.append(pointer.value)
answer([result, len(held), info()[1] // MIB])
"""


@rights.needs_mounts
def test_program_in_a_container_has_its_grants_limits(places, machine, driver, tmp_path):
    small, large = (
        grant_of(share_of(machine)),
        grant_of(share_of(machine, 1, size=4 * GIB), number=2),
    )
    reserve = driver.devices[machine.devices[0].uuid].context_bytes
    for grant, size in ((small, 2 * GIB), (large, 4 * GIB)):
        places.make(grant, driver)
        edits = granted.edits_of(places.specification(grant.id))
        found, said = granted.ask(edits, tmp_path / grant.id, PROGRAM)
        assert found == [2, (size - reserve) // (256 * MIB), size // MIB], said


@rights.needs_mounts
@pytest.mark.parametrize("path", ["/nowhere", "/usr/local/cuda/compat", "/usr/lib64", ""])
@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so", "/usr/lib64/libcuda.so.1"])
def test_own_library_path_does_not_bypass_the_shim(places, machine, driver, tmp_path, path, name):
    grant = grant_of(share_of(machine, size=GIB))
    places.make(grant, driver)
    edits = granted.edits_of(places.specification(grant.id))
    bare = tmp_path / "image"
    bare.mkdir()
    (bare / "libcuda.so.1").symlink_to(driver.tree / "exclusive/lib64/libcuda.so.1")
    # The mounts hide the image's own files there.
    edits["mounts"].insert(
        0, {"hostPath": bare, "containerPath": "/usr/local/cuda/compat", "options": ["ro"]}
    )
    edits["env"].append(f"LD_LIBRARY_PATH={path}")
    source = f"cuda = ctypes.CDLL({name!r})\ncontext()\nanswer(info()[1] // GIB)"
    found, said = granted.ask(edits, tmp_path / "root", source)
    assert found == 1, said


@rights.needs_mounts
def test_container_with_whole_devices_has_no_quota(places, machine, driver, tmp_path):
    grant = grant_of(share_of(machine, vcore=100))
    places.make(grant, driver)
    edits = granted.edits_of(places.specification(grant.id))
    source = "context()\nanswer([alloc(20 << 30)[0], info()[1]])"
    found, said = granted.ask(edits, tmp_path / "root", source)
    assert found == [0, machine.devices[0].memory_bytes], said


@rights.needs_mounts
def test_unbound_grant_has_no_device(places, machine, driver, tmp_path):
    grant = grant_of(share_of(machine))
    places.make(grant, driver)
    edits = granted.edits_of(places.specification(grant.id))
    empty = places.prepare(f"{2:016x}")
    for mount in edits["mounts"]:
        mount["hostPath"] = mount["hostPath"].replace(str(places.path(grant.id)), str(empty))
    found, said = granted.ask(edits, tmp_path / "root", "answer(cuda.cuInit(0))")
    assert found != 0
    assert "/etc/pyvgpu/quota" in said


@rights.needs_mounts
def test_container_cannot_write_its_quota(places, machine, driver, tmp_path):
    grant = grant_of(share_of(machine))
    places.make(grant, driver)
    edits = granted.edits_of(places.specification(grant.id))
    source = """
import errno
found = []
for path in ("/etc/pyvgpu/quota", "/etc/pyvgpu/more", "/run/pyvgpu-clock/0"):
    try:
        open(path, "ab")
    except OSError as exc:
        found.append(exc.errno == errno.EROFS)
answer(found)
"""
    assert granted.ask(edits, tmp_path / "root", source)[0] == [True, True, True]


@rights.needs_mounts
def test_grant_is_in_use_while_a_process_has_a_context(places, machine, driver, tmp_path):
    grant = grant_of(share_of(machine))
    places.make(grant, driver)
    assert not places.is_used(grant.id)
    edits = granted.edits_of(places.specification(grant.id))
    source = "context()\nanswer(True)\nsys.stdin.read()"
    with granted.start(edits, tmp_path / "root", source) as process:
        assert process.stdout.readline() == "true\n"
        assert places.is_used(grant.id)
        process.stdin.close()
    assert not places.is_used(grant.id)


@rights.needs_mounts
@pytest.mark.parametrize("how", ["revoke", "remove"])
def test_revoked_grant_refuses_allocations_and_new_processes(
    places, machine, driver, tmp_path, how
):
    grant = grant_of(share_of(machine))
    places.make(grant, driver)
    edits = granted.edits_of(places.specification(grant.id))
    source = """
context()
answer(alloc(MIB)[0])
sys.stdin.readline()
answer(alloc(MIB)[0])
"""
    with granted.start(edits, tmp_path / "root", source) as process:
        assert process.stdout.readline() == "0\n"
        folder = places.path(grant.id)
        if how == "revoke":
            places.revoke(grant.id)
            said = granted.ask(edits, tmp_path / "other", "answer(cuda.cuInit(0))")
            assert said[0] != 0
            assert places.is_used(grant.id)
        else:
            places.remove(grant.id)
            assert not folder.exists()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "2\n"  # CUDA_ERROR_OUT_OF_MEMORY


@rights.needs_mounts
def test_running_container_gets_new_limits_at_once(places, machine, driver, tmp_path):
    grant = grant_of(share_of(machine, size=4 * GIB))
    places.make(grant, driver)
    source = """
context()
for line in sys.stdin:
    answer([alloc(GIB)[0], info()[1] // GIB])
"""
    edits = granted.edits_of(places.specification(grant.id))
    with granted.start(edits, tmp_path / "root", source) as process:

        def once_more():
            process.stdin.write("\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        assert once_more() == [0, 4]
        for size, expected in ((GIB, [2, 1]), (3 * GIB, [0, 3]), (4 * GIB, [0, 4])):
            places.make(dataclasses.replace(grant, shares=(share_of(machine, size=size),)), driver)
            assert once_more() == expected
        process.stdin.close()
