import pytest
import runner


@pytest.fixture
def held(tmp_path):
    """Return a function that runs a command with 2 GiB of an H100 and returns what it printed.

    It is `pyvgpu run` itself; every call is a run of its own, on one machine.
    """
    start = runner.Runner(tmp_path)

    def run(*command: object) -> str:
        ran = start("--vmemory", "2GiB", "--", *command)
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
        return ran.stdout

    return run
