"""Where whoever answers and whoever calls meet."""

import pytest


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.sock"
