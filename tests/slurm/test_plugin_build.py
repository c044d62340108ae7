from pathlib import Path

import pytest

from pyvgpu import errors
from pyvgpu.slurm import plugin_build


def test_without_slurms_headers_the_error_says_what_to_install(tmp_path, monkeypatch):
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\necho "fatal error: slurm/slurm.h: No such file" >&2\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(errors.UnavailableError, match=r"apt-get install libslurm-dev"):
        plugin_build.build(tmp_path / "out", None)
    assert list((tmp_path / "out").iterdir()) == []


def test_without_a_compiler_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(errors.UnavailableError, match=r"apt-get install gcc"):
        plugin_build.build(tmp_path / "out", None)


def test_folder_without_the_header_is_refused(tmp_path):
    with pytest.raises(errors.UsageError, match=r"has no slurm/spank.h; must be a folder"):
        plugin_build.build(tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs /sys")
def test_folder_that_may_not_be_written_is_a_denied_access():
    with pytest.raises(errors.PermissionDeniedError, match=r"/sys/pyvgpu: cannot be written: "):
        plugin_build.build(Path("/sys/pyvgpu"), None)
