"""The auditor finds programs that bypass the shim, with a simulated driver's NVML."""

import base64
import contextlib
import json
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import granted
import machine_room
import programs
import pytest
import rights
import shim_room
import waiting
from granted import GIB, grant_of, share_of

from pyvgpu import region
from pyvgpu._region import ffi
from pyvgpu.deviceplugin.audit import auditor
from pyvgpu.simulation import simulator

PROGRAMS = Path(__file__).parents[1] / "clients" / "programs"
AUDIT = """
import json, logging, sys
from pathlib import Path
from pyvgpu import nvml
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.audit import auditor
from pyvgpu.deviceplugin.containers import store
from pyvgpu.deviceplugin.agent_settings import AuditAction
base, library = Path(sys.argv[1]), Path(sys.argv[2])
places = store.GrantStore(base / "grants", base / "cdi")
given = {one["id"]: grants.load(one) for one in json.loads(sys.argv[3])}
logging.disable()
reported = []
watching = {
    action.value: auditor.Auditor(
        library, places, lambda: given, auditor.AuditorDependencies(action, reported.append)
    )
    for action in AuditAction
}
with nvml.session(library):
    for line in sys.stdin:
        action, *correct = line.split()
        one = watching[action]
        for _ in correct:
            one.correct()
        one.poll()
        words = [
            [finding.kind.value, finding.pids, finding.pod, finding.text]
            for finding in one.findings
        ]
        said = [[event.reason.value, event.uid, event.text] for event in reported]
        reported.clear()
        print(json.dumps([words, said]), flush=True)
"""

SHIMMED = "context()\nanswer([alloc(GIB)[0], os.getpid()])\nsys.stdin.read()"
BARE = "cuda = ctypes.CDLL({library!r})\n" + SHIMMED


@pytest.fixture
def audited(places, machine, driver, tmp_path, request):
    """Two grants on one device and a poll of the auditor, run under the parameter's command."""
    made = [grant_of(share_of(machine), number=number) for number in (1, 2)]
    for grant in made:
        places.make(grant, driver)
    library = machine_room.driver_folder(machine) / "libnvidia-ml.so.1"
    dumped = json.dumps([granted.grants.dump(grant) for grant in made])
    with subprocess.Popen(
        [*getattr(request, "param", ()), sys.executable, "-c", AUDIT, tmp_path, library, dumped],
        env=machine_room.environment(machine),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def poll(action="report", *, corrections=0, all_of_it=False):
            process.stdin.write(f"{action}{' correct' * corrections}\n")
            process.stdin.flush()
            found, reported = json.loads(process.stdout.readline())
            return (found, reported) if all_of_it else found

        yield made, poll
        process.stdin.close()
        assert process.wait(timeout=waiting.PROMPT) == 0


@contextlib.contextmanager
def running(places, grant, tmp_path, source):
    """Run *source* in a container of *grant*; yield its pid."""
    edits = granted.edits_of(places.specification(grant.id))
    with granted.start(edits, tmp_path / f"root-{grant.id}", source) as process:
        result, pid = json.loads(process.stdout.readline())
        assert result == 0
        yield pid
        process.stdin.close()


@contextlib.contextmanager
def contained(places, grant, tmp_path, source):
    """Run *source* in a container of *grant* with its own PID namespace; yield the process."""
    edits = granted.edits_of(places.specification(grant.id))
    root = tmp_path / f"root-{grant.id}"
    with granted.start(edits, root, source, within=rights.PID_NAMESPACE) as process:
        yield process
        process.stdin.close()


@contextlib.contextmanager
def outside(machine):
    """Run a program of the node itself, in no container; yield it and its pid."""
    with subprocess.Popen(
        [sys.executable, "-c", shim_room.PRELUDE + SHIMMED],
        env=shim_room.bare_environment(machine),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        result, pid = json.loads(process.stdout.readline())
        assert result == 0
        yield process, pid
        process.stdin.close()


def test_device_in_mig_mode_is_not_audited(audited, machine):
    _, poll = audited
    simulator.set_faults(machine, "mig 0")
    assert poll() == []


@rights.needs_mounts
@rights.needs_first_pid_namespace
def test_bypassing_process_is_found_and_its_neighbour_is_not(audited, places, driver, tmp_path):
    (first, second), poll = audited
    bare = BARE.format(library=str(driver.tree / "exclusive/lib64/libcuda.so.1"))
    with running(places, first, tmp_path, SHIMMED):
        assert [poll(), poll()] == [[], []]
        with running(places, second, tmp_path, bare) as pid:
            assert poll() == []
            ((kind, pids, pod, text),) = poll()
            assert (kind, pids, pod) == ("no-shim", [pid], "uid")
            assert text.startswith(
                f"process {pid} of team/pod-2/main uses gpu0 without the shim: "
            )
            assert len(poll()) == 1
        assert poll() == []


@rights.needs_mounts
@rights.needs_first_pid_namespace
@pytest.mark.parametrize(
    "audited", [("setpriv", "--bounding-set=-all", "--inh-caps=-all")], indirect=True
)
def test_audit_without_access_to_maps_has_no_false_findings(audited, places, driver, tmp_path):
    (first, second), poll = audited
    bare = BARE.format(library=str(driver.tree / "exclusive/lib64/libcuda.so.1"))
    with running(places, first, tmp_path, SHIMMED), running(places, second, tmp_path, bare) as pid:
        poll()
        ((kind, pids, _, _),) = poll()
        assert (kind, pids) == ("no-shim", [pid])


@rights.needs_mounts
@rights.needs_first_pid_namespace
def test_container_above_its_quota_is_found(audited, places, driver, tmp_path):
    (first, _), poll = audited
    library = str(driver.tree / "exclusive/lib64/libcuda.so.1")
    source = BARE.format(library=library).replace("alloc(GIB)", f"alloc({3 * GIB})")
    with running(places, first, tmp_path, source):
        poll()
        found = poll()
        assert [kind for kind, _, _, _ in found] == ["no-shim", "above"]
        assert "of gpu0, its quota is 2GiB" in found[1][3]


ZEROED = (65536, 4096, 256, 64, 32)
TAMPERING = """
import fcntl, struct
answer([context() and 0, os.getpid()])
with open("/run/pyvgpu/usage", "rb") as file:
    earlier = file.read()
(first, _), (second, _) = alloc(700 * MIB), alloc(MIB)
answer([first, second])
def unlock():
    nothing = struct.pack("hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
    found = [number for number in os.listdir("/proc/self/fd") if is_usage(number)]
    assert found
    for number in found:
        fcntl.fcntl(int(number), fcntl.F_OFD_SETLK, nothing)
def is_usage(name):
    try:
        return os.readlink("/proc/self/fd/" + name).endswith("/usage")
    except OSError:
        return False
for line in sys.stdin:
    if line.strip():
        with open("/run/pyvgpu/usage", "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            exec(line)
        answer("changed")
    else:
        if not os.fork():
            os.execv(sys.executable, [sys.executable, "-c", SECOND])
        answer(os.waitstatus_to_exitcode(os.wait()[1]))
"""
# A quota of 2 GiB has no room for two contexts and twice as much.
SECOND = shim_room.PRELUDE + "context()\nsys.exit(alloc(700 * MIB)[0])\n"


@rights.needs_mounts
@rights.needs_pid_namespace
@rights.needs_first_pid_namespace
def test_container_with_own_pid_namespace_is_identified(audited, places, tmp_path):
    (first, _), poll = audited
    source = "context()\nanswer([alloc(GIB)[0], os.getpid()])\nsys.stdin.read()"
    with contained(places, first, tmp_path, source) as process:
        assert json.loads(process.stdout.readline()) == [0, 1]
        assert [poll(corrections=2), poll(corrections=2)] == [[], []]


@pytest.mark.slow
@rights.needs_mounts
@rights.needs_pid_namespace
@rights.needs_first_pid_namespace
@pytest.mark.parametrize(
    "audited",
    [(), ("setpriv", "--bounding-set=-all", "--inh-caps=-all")],
    indirect=True,
    ids=["with all rights", "without a capability"],
)
@pytest.mark.parametrize(
    "change",
    [
        *(f"file.seek({place}); file.write(bytes(size - {place}))" for place in ZEROED),
        "file.seek(65536); file.write(os.urandom(size - 65536))",
        "file.write(bytes(64))",
        "file.truncate(256)",
        "file.write(earlier)",
    ],
    ids=[
        *(f"zeros from {place}" for place in ZEROED),
        "garbage",
        "no header",
        "cut off",
        "an earlier copy",
    ],
)
def test_tampered_ledger_is_corrected_and_reported(audited, places, tmp_path, change):
    _, poll = audited
    with tampering(audited, places, tmp_path, change):
        found, reported = poll(corrections=2, all_of_it=True)
        if not found:  # a structural change counts after two polls
            found, reported = poll(corrections=2, all_of_it=True)
        ((kind, _, pod, text),) = found
        assert (kind, pod) == ("tampered", "uid")
        assert text.startswith("the ledger of team/pod-1/main")
        assert "was changed by something other than the shim: " in text
        assert [reason for reason, _, _ in reported] == ["VGPUTampered"]


@pytest.mark.slow
@rights.needs_mounts
@rights.needs_pid_namespace
@rights.needs_first_pid_namespace
@pytest.mark.parametrize("header", ["its own", "the other's"])
def test_a_ledger_copied_from_another_container_is_corrected(audited, places, tmp_path, header):
    """Also if only the header is left, which says whose the file is."""
    (_, second), poll = audited
    source = "answer([context() and 0, os.getpid()])\nsys.stdin.read()"
    with contained(places, second, tmp_path, source) as other:
        assert json.loads(other.stdout.readline()) == [0, 1]
        content = base64.b64encode(zlib.compress((places.path(second.id) / "usage").read_bytes()))
    begin = {"its own": ffi.sizeof("struct region_header"), "the other's": 0}[header]
    change = (
        f"import base64, zlib; file.seek({begin}); "
        f"file.write(zlib.decompress(base64.b64decode({content!r}))[{begin}:])"
    )
    with tampering(audited, places, tmp_path, change):
        found = poll(corrections=2) or poll(corrections=2)
        assert [(kind, pod) for kind, _, pod, _ in found] == [("tampered", "uid")]


def field(name):
    """Return where a field of the usage file begins."""
    return ffi.offsetof("struct usage_file", name)


@rights.needs_mounts
@rights.needs_pid_namespace
@rights.needs_first_pid_namespace
def test_invalid_times_in_a_ledger_change_no_memory(audited, places, tmp_path):
    parts = [("work", "link_end"), ("worked_ns", "links"), ("idle", "blocks")]
    change = "; ".join(
        f"file.seek({field(begin)}); file.write(os.urandom({field(end) - field(begin)}))"
        for begin, end in parts
    )
    (first, _), poll = audited
    with tampering(audited, places, tmp_path, change):
        before = total(places, first)
        assert poll(corrections=3) == []
        assert total(places, first) == before


@rights.needs_mounts
@rights.needs_pid_namespace
@rights.needs_first_pid_namespace
def test_memory_of_a_process_without_slot_is_counted(audited, places, tmp_path):
    _, poll = audited
    with tampering(audited, places, tmp_path, "unlock()"):
        poll(corrections=3)


@contextlib.contextmanager
def tampering(audited, places, tmp_path, change):
    """Apply *change* to a container's ledger; after the block all its memory must count."""
    (first, _), poll = audited
    source = f"SECOND = {SECOND!r}\n{TAMPERING}"
    with contained(places, first, tmp_path, source) as process:

        def another():
            """Start a process in the container; return 0 if its allocation succeeds."""
            process.stdin.write("\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        assert json.loads(process.stdout.readline()) == [0, 1]
        assert json.loads(process.stdout.readline()) == [0, 0]
        assert poll(corrections=3) == []
        assert another() == 2
        before = total(places, first)
        process.stdin.write(f"{change}\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == "changed"
        yield
        assert total(places, first) >= before
        assert another() != 0


@rights.needs_mounts
@rights.needs_first_pid_namespace
def test_bypassing_memory_is_charged_to_the_container(audited, places, driver, tmp_path):
    (first, _), poll = audited
    library = driver.tree / "exclusive/lib64/libcuda.so.1"
    bare = BARE.format(library=str(library)).replace("alloc(GIB)", "alloc(1100 * MIB)")
    edits = granted.edits_of(places.specification(first.id))
    with running(places, first, tmp_path, bare):
        honest = "context(); answer(0); sys.stdin.readline(); answer(alloc(1100 * MIB)[0])"
        with granted.start(edits, tmp_path / "honest", honest) as process:
            assert process.stdout.readline() == "0\n"
            poll(corrections=2)
            process.stdin.write("\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == 2


def total(places, grant):
    """Return the bytes that the container's shim counts: charged, plus measured beyond that."""
    with places.opened(grant.id, "usage") as usage, places.opened(grant.id, "quota") as quota:
        charged = sum(slot.charged[0] for slot in region.read_counted_slots(usage, 1))
        return charged + region.read_extra_totals(quota, 1)[0]


@rights.needs_first_pid_namespace
def test_process_of_the_node_is_found(audited, machine):
    _, poll = audited
    with outside(machine) as (_, pid):
        poll()
        found = poll()
        assert [(kind, pids) for kind, pids, _, _ in found] == [("outside", [pid])]


@rights.needs_mounts
@rights.needs_first_pid_namespace
def test_finding_is_reported_once(audited, places, driver, tmp_path):
    (first, _), poll = audited
    bare = BARE.format(library=str(driver.tree / "exclusive/lib64/libcuda.so.1"))
    with running(places, first, tmp_path, bare) as pid:
        poll()
        _, ((reason, uid, text),) = poll(all_of_it=True)
        assert (reason, uid) == ("VGPUQuotaBypassed", "uid")
        assert text.startswith(f"process {pid} of team/pod-1/main uses gpu0 without the shim")
        assert poll(all_of_it=True)[1] == []


@rights.needs_mounts
@rights.needs_first_pid_namespace
def test_only_the_bypassing_process_is_killed(audited, places, driver, tmp_path):
    (first, second), poll = audited
    bare = BARE.format(library=str(driver.tree / "exclusive/lib64/libcuda.so.1"))
    with (
        running(places, first, tmp_path, SHIMMED) as innocent,
        running(places, second, tmp_path, bare) as pid,
    ):
        assert poll("kill") == []
        assert Path(f"/proc/{pid}").exists()
        found, reported = poll("kill", all_of_it=True)
        assert [(kind, pids) for kind, pids, _, _ in found] == [("no-shim", [pid])]
        assert [reason for reason, _, _ in reported] == ["VGPUQuotaBypassed", "VGPUProcessEnded"]
        waiting.wait_until(lambda: poll("kill") == [])
        assert not Path(f"/proc/{pid}/maps").read_bytes()
        assert Path(f"/proc/{innocent}/maps").read_bytes()


@rights.needs_mounts
@rights.needs_first_pid_namespace
def test_statically_linked_program_is_killed(audited, places, tmp_path):
    """It loads no library that could be the shim: the driver is linked into the program."""
    (first, _), poll = audited
    edits = granted.edits_of(places.specification(first.id))
    root = tmp_path / "root"
    root.mkdir()
    bare = programs.build_bare("bare", PROGRAMS / "bare.c")
    with subprocess.Popen(
        granted.command(edits, root, bare),
        env=granted.variables(edits),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        result, pid = json.loads(process.stdout.readline())
        assert result == 0
        assert poll("kill") == []
        ((kind, pids, _, _),) = poll("kill")
        assert (kind, pids) == ("no-shim", [pid])
        assert process.wait(timeout=waiting.PROMPT) == -signal.SIGKILL


@rights.needs_first_pid_namespace
def test_process_of_the_node_is_never_killed(audited, machine):
    _, poll = audited
    with outside(machine) as (process, _):
        for _ in range(3):
            _, reported = poll("kill", all_of_it=True)
            assert reported == []
        assert process.poll() is None


def test_comparisons_are_rarer_while_there_are_no_grants():
    assert auditor.pause_seconds({}) > auditor.pause_seconds({"grant": object()})
