"""The MIG mode of a GPU: the current one, not the one after its next reset."""

import pynvml
import pytest

from pyvgpu import nvml


@pytest.mark.parametrize(
    ("current", "pending", "on"),
    [
        pytest.param(0, 0, False, id="off"),
        pytest.param(0, 1, False, id="on after a reset"),
        pytest.param(1, 0, True, id="off after a reset"),
        pytest.param(1, 1, True, id="on"),
    ],
)
def test_mode_is_the_current_one(monkeypatch, current, pending, on):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", lambda _: [current, pending])
    assert nvml.is_in_mig_mode(None) is on


def failing(number):
    def call(_handle):
        raise pynvml.NVMLError(number)

    return call


def test_board_without_mig_is_not_in_mig_mode(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", failing(pynvml.NVML_ERROR_NOT_SUPPORTED))
    assert nvml.is_in_mig_mode(None) is False


def test_mode_that_cannot_be_read_is_an_error(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", failing(pynvml.NVML_ERROR_GPU_IS_LOST))
    with pytest.raises(pynvml.NVMLError):
        nvml.is_in_mig_mode(None)
