"""Runs the kubectl plugin against an API server of the tests."""

import pytest
import scheduling_api as make
import small_api

from pyvgpu import cli


@pytest.fixture
def plugin(tmp_path, capsys):
    """Yield a function that runs the plugin in namespace n; `api` is its API server."""
    with small_api.running(make.SchedulingApi()) as (api, connection):
        written = tmp_path / "kubeconfig"
        small_api.write_kubeconfig(written, connection, namespace="n")

        def run(*words):
            code = cli.kubectl_main([*words, "--kubeconfig", str(written)])
            return code, *capsys.readouterr()

        run.api = api
        yield run
