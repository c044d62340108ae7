"""Pictures of the status page in docs/: each is of the page as it is now."""

import pytest
import status_pictures
from PIL import Image


@pytest.mark.parametrize("name", status_pictures.PICTURES)
def test_a_picture_is_of_the_page_as_it_is(name):
    with Image.open(status_pictures.FOLDER / f"{name}.png") as picture:
        made_of = picture.info.get(status_pictures.OF)
    assert made_of == status_pictures.digest(name), "the page is another: make browser-pictures"


def test_every_picture_is_in_the_document():
    text = (status_pictures.FOLDER.parent / "status.md").read_text()
    for name in status_pictures.PICTURES:
        assert f"(pictures/{name}.png)" in text


def test_there_is_no_picture_that_nobody_makes():
    found = {it.stem for it in status_pictures.FOLDER.glob("status-*.png")}
    assert found == set(status_pictures.PICTURES)
