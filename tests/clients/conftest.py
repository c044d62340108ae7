import pytest
import runner


@pytest.fixture
def held(tmp_path):
    """Return a function that runs a command with 2 GiB of an H100 and returns its output.

    It uses `pyvgpu run` itself; every call is a separate run on the same machine.
    """
    return _held(tmp_path, "h100", "--vmemory", "2GiB")


@pytest.fixture
def held_of_two(tmp_path):
    """Return the same for the second of two devices, an H100 beside a T4."""
    return _held(tmp_path, "t4,h100", "--vmemory", "2GiB", "--device", "1")


def _held(place, machine, *options):
    start = runner.Runner(place, machine)

    def run(*command: object) -> str:
        ran = start(*options, "--", *command)
        lines = ran.stderr.splitlines()
        # The simulated driver names kernels that it does not compute, and the runtime's request.
        errors = [line for line in lines if not line.startswith("pyvgpu simulator: ")]
        assert (ran.returncode, errors) == (0, []), ran.stdout + ran.stderr
        return ran.stdout

    return run
