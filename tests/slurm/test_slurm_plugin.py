from pathlib import Path

import pytest

from pyvgpu import errors
from pyvgpu.cli import slurm_plugin


def test_without_slurms_headers_the_error_says_what_to_install(tmp_path, monkeypatch):
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\necho "fatal error: slurm/slurm.h: No such file" >&2\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(errors.UnavailableError, match=r"apt-get install libslurm-dev"):
        slurm_plugin.build(tmp_path / "out", None)
    assert list((tmp_path / "out").iterdir()) == []


def test_without_a_compiler_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(errors.UnavailableError, match=r"apt-get install gcc"):
        slurm_plugin.build(tmp_path / "out", None)


def test_folder_without_the_header_is_refused(tmp_path):
    with pytest.raises(errors.UsageError, match=r"has no slurm/spank.h; must be a folder"):
        slurm_plugin.build(tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs /sys")
def test_folder_that_may_not_be_written_is_a_denied_access():
    with pytest.raises(errors.PermissionDeniedError, match=r"/sys/pyvgpu: cannot be written: "):
        slurm_plugin.build(Path("/sys/pyvgpu"), None)
