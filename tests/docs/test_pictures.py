"""Pictures of the status page in docs/ are up to date with the page."""

import pytest
import status_pictures
from PIL import Image


@pytest.mark.slow
@pytest.mark.parametrize("name", status_pictures.PICTURES)
def test_picture_is_up_to_date(name):
    with Image.open(status_pictures.FOLDER / f"{name}.png") as picture:
        made_of = picture.info.get(status_pictures.OF)
    assert made_of == status_pictures.digest(name), "the page has changed: make browser-pictures"


def test_every_picture_is_on_the_page():
    text = (status_pictures.FOLDER.parent / "status.md").read_text()
    for name in status_pictures.PICTURES:
        assert f"(pictures/{name}.png)" in text


def test_every_picture_file_is_generated():
    found = {path.stem for path in status_pictures.FOLDER.glob("status-*.png")}
    assert found == set(status_pictures.PICTURES)
