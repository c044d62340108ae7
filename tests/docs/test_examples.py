"""Files in examples/ are documented and consistent, and the webhook accepts their pods."""

import re
import runpy
from pathlib import Path

import example_files
import pytest
from cuda.bindings import nvjitlink
from generator import vocabulary

from pyvgpu import names
from pyvgpu.allocator import datatypes
from pyvgpu.controller.scheduler import pod_request
from pyvgpu.controller.sidecar import controller_settings
from pyvgpu.controller.webhook import devices, review, transform

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "examples.md").read_text()
GIB = 1 << 30
H100 = datatypes.NodeDevice("", 0, 79 * GIB, "NVIDIA H100 80GB HBM3", least_bytes=GIB)
PODS = [
    pytest.param(pod, id=f"{name}-{number}")
    for name in example_files.MANIFESTS
    for number, pod in enumerate(
        pod for thing in example_files.objects(name) for pod in example_files.pods(thing)
    )
]
KNOWN = {
    *(row[0] for row in vocabulary.WRITTEN_ON_PODS),
    names.VCORE_RESOURCE,
    names.VMEMORY_RESOURCE,
}


def files():
    return [
        path
        for path in example_files.FOLDER.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    ]


def test_each_example_is_on_the_page():
    linked = set(re.findall(r"\]\(\.\./(examples/[^)#]+)\)", PAGE))
    assert linked == {str(file.relative_to(ROOT)) for file in files()}


@pytest.mark.parametrize("name", example_files.MANIFESTS)
def test_head_has_the_commands_to_use_it(name):
    typed = example_files.commands(name)
    assert any(f"examples/{name}" in line for line in typed)
    programs = "kubectl create configmap examples --from-file=examples/programs"
    needed = "configMap: {name: examples}" in (example_files.FOLDER / name).read_text()
    assert (programs in typed) == needed


@pytest.mark.parametrize("name", example_files.MANIFESTS)
def test_examples_use_one_image(name):
    found = set(example_files.images(example_files.objects(name)))
    assert found <= {example_files.IMAGE}


@pytest.mark.parametrize("name", example_files.MANIFESTS)
def test_pyvgpu_names_in_examples_exist(name):
    text = (example_files.FOLDER / name).read_text()
    assert set(re.findall(rf"{re.escape(names.DOMAIN)}/[\w-]+", text)) <= KNOWN


def test_files_that_containers_run_exist():
    run = {
        word
        for pod in PODS
        for container in pod.values[0]["spec"]["containers"]
        for word in " ".join(container["command"]).split()
        if word.startswith("/examples/")
    }
    assert len(run) >= 2
    assert [path for path in run if not (example_files.PROGRAMS / Path(path).name).exists()] == []


@pytest.mark.parametrize("pod", PODS)
def test_webhook_accepts_each_pod(pod):
    request = review.AdmissionRequest("u", "CREATE", "pods", "team", pod)
    rules = devices.DeviceRules()
    changes = devices.mutation(rules, lambda: (H100,), lambda *_: None)
    ends = transform.mutation(
        transform.Admission(controller_settings.SidecarSettings()), lambda: None
    )
    for ask in (changes, devices.validation(rules, lambda: (H100,)), ends):
        answer = ask(request)
        assert (answer.refusal, answer.warnings) == ("", ())
    assert pod_request.read(pod) is not None or pod["spec"].get("resourceClaims")


def test_examples_have_pods():
    assert len(PODS) >= 10


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90", "sm_100"])
def test_kernels_compile_for_real_devices(architecture):
    text = runpy.run_path(str(example_files.PROGRAMS / "gpu.py"))["KERNELS"]
    linker = nvjitlink.create(1, [f"-arch={architecture}"])
    try:
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, text, len(text), "kernels")
        nvjitlink.complete(linker)
        assert nvjitlink.get_linked_cubin_size(linker)
    finally:
        nvjitlink.destroy(linker)
