"""Wheels are built without the C unit tests, and editable installations with them."""

from pathlib import Path

import pytest
from scikit_build_core.settings.skbuild_read_settings import SettingsReader

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


@pytest.mark.parametrize(
    ("state", "defined"), [("wheel", {"BUILD_TESTING": "OFF"}), ("editable", {})]
)
def test_only_editable_installations_build_the_unit_tests(state, defined):
    settings = SettingsReader.from_file(PROJECT, state=state).settings
    assert {key: str(value) for key, value in settings.cmake.define.items()} == defined
