"""Unpacking of the kit's wheels, and users without a home folder."""

import pathlib
import pwd
import sys
import tempfile
import zipfile

import pytest
from kit import private, unpack


def test_kits_of_one_version_do_not_share_unpacked_wheels(tmp_path):
    places = set()
    for text in ("one", "other"):
        kit = tmp_path / text
        (kit / "wheels" / "any").mkdir(parents=True)
        (kit / "VERSION").write_text("1.0\n")
        with zipfile.ZipFile(kit / "wheels" / "any" / "it.whl", "w") as wheel:
            wheel.writestr("it.py", text)
        place = unpack.unpack_into(tmp_path, kit)
        assert (place / "it.py").read_text() == text
        assert unpack.unpack_into(tmp_path, kit) == place
        places.add(place)
    assert len(places) == 2


@pytest.fixture
def homeless(monkeypatch):
    """A user without a home folder and a name, as in a container that runs as any user."""

    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_a_user_without_a_home_is_served(homeless):
    with pytest.raises(OSError, match="home directory"):
        unpack.cache()
    assert private.clean("/home/carla/x") == "/home/USER/x"


def test_without_any_folder_to_unpack_into_one_line_says_so(
    homeless, monkeypatch, tmp_path, capsys
):
    def none():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    monkeypatch.setattr(sys, "argv", ["unpack.py", str(tmp_path / "none")])
    assert unpack.main() == 73
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("run: the wheels cannot be unpacked: [Errno 2] No usable temporary")
    assert len(said.err.splitlines()) == 1
    assert pathlib.Path(tmp_path / "none").exists() is False
