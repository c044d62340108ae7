"""Files that describe simulated machines: valid content, and the machines made of them."""

import pytest

from pyvgpu import errors
from pyvgpu.simulation import law, machines, simulator

LIKE = """pyvgpu-simulated-machine 1
# a comment

machine=h100
slice_ns=2500000
switch_ns = 100000
context_bytes=1073741824
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "like.machine"
    path.write_text(LIKE)
    return path


def test_the_machine_of_a_file_has_its_law_and_figures(file, tmp_path):
    made = simulator.open_machine(str(file), tmp_path / "machines")
    assert made == simulator.read_machine(made.folder)
    assert made.law == law.Law(slice_ns=2_500_000, switch_ns=100_000)
    (device,) = made.devices
    assert (device.model, device.context_bytes) == ("h100", 1 << 30)
    assert simulator.open_machine(str(file), tmp_path / "machines") == made


def test_each_content_of_a_file_has_its_own_machine(file, tmp_path):
    first = simulator.open_machine(str(file), tmp_path)
    file.write_text(f"{LIKE}# the same but for this\n")
    assert simulator.open_machine(str(file), tmp_path).folder == first.folder
    file.write_text(LIKE.replace("2500000", "2600000"))
    other = simulator.open_machine(str(file), tmp_path)
    assert other.folder != first.folder
    assert simulator.open_machine("h100", tmp_path).folder not in (first.folder, other.folder)


def test_a_law_from_python_overrides_that_of_the_file(file, tmp_path):
    given = law.Law(slice_ns=7)
    assert simulator.open_machine(str(file), tmp_path, law=given).law == given


def test_a_file_may_have_several_devices(file, tmp_path):
    file.write_text(LIKE.replace("h100", "h100:2,t4"))
    assert [parsed.key for parsed in machines.parse_machine(str(file))] == ["h100", "h100", "t4"]
    made = simulator.open_machine(str(file), tmp_path)
    assert {device.context_bytes for device in made.devices} == {1 << 30}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("else\n", "first line must be 'pyvgpu-simulated-machine 1'", id="heading"),
        pytest.param("", "first line must be", id="empty"),
        pytest.param(f"{LIKE}colour=3\n", ":8: 'colour=3': must be KEY=VALUE", id="key"),
        pytest.param(f"{LIKE}slice_ns=3\n", ":8: 'slice_ns=3': must be .* each once", id="twice"),
        pytest.param(f"{LIKE}slice\n", ":8: 'slice': must be KEY=VALUE", id="no value"),
        pytest.param(f"{LIKE}event_ns=fast\n", "event_ns=fast: must be from 0 to", id="word"),
        pytest.param(f"{LIKE}event_ns={'9' * 5000}\n", "9: must be from 0 to", id="long"),
        pytest.param(f"{LIKE}fork_keeps=1\n", "fork_keeps=1: must be yes or no", id="flag"),
        pytest.param(
            f"{LIKE}event_late_ns=9\n", "event_late_ns=9: must be from 0 to event_ns=0", id="law"
        ),
        pytest.param(f"{LIKE}sm_count=0\n", "sm_count=0: must be a whole number from 1", id="0"),
        pytest.param(LIKE.replace("machine=h100\n", ""), "machine=: must name models", id="none"),
        pytest.param(LIKE.replace("h100", "h1"), "unknown model 'h1'", id="model"),
        pytest.param(LIKE.replace("h100", "a.machine"), "must name models", id="a file"),
    ],
)
def test_invalid_files_are_refused_with_the_reason(file, text, problem):
    file.write_text(text)
    with pytest.raises(machines.MachineFileError, match=problem):
        machines.describe(str(file))


def test_a_missing_file_is_refused_with_the_command_that_writes_it(tmp_path):
    with pytest.raises(errors.UsageError, match="no such file; `pyvgpu calibrate RECORD --write"):
        machines.describe(str(tmp_path / "none.machine"))
    with pytest.raises(errors.UsageError, match="or a file that describes one, such as h100.mach"):
        machines.describe("none")


def test_invalid_machines_are_not_written(tmp_path):
    path = tmp_path / "new.machine"
    with pytest.raises(machines.MachineFileError, match="queue_depth=0: must be from 1"):
        machines.write(path, "h100", {"queue_depth": "0"}, ())
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_atomically(tmp_path):
    path = tmp_path / "new.machine"
    for depth in ("16", "17"):
        machines.write(path, "h100", {"queue_depth": depth}, ("by a test",))
        assert machines.read(path).law == law.Law(queue_depth=int(depth))
    assert list(tmp_path.iterdir()) == [path]


def test_writing_to_a_missing_folder_fails(tmp_path):
    with pytest.raises(errors.UnavailableError, match="cannot be written: No such file"):
        machines.write(tmp_path / "none" / "new.machine", "h100", {}, ())
