"""A module below 100 lines that one other imports is merged into it, or KEPT says why not."""

import collections
import re

import pure

PACKAGES = {
    "pyvgpu": "pyvgpu",
    "controller": "pyvgpu.controller",
    "deviceplugin": "pyvgpu.deviceplugin",
    "volumes": "pyvgpu.volumes",
}
LEAST_LINES = 100
IMPORT = re.compile(r"^ *from (pyvgpu[\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)

LATE = "needs an extra: its command imports it late, and has --help without it"
PARTS = "part of a program; the command that imports it parses options, and puts parts together"
AGENT = "part of the agent; the module that imports it only puts parts together"
KEPT = {
    "pyvgpu.cli.kubectl.completions": "loaded only while kubectl completes a command line",
    "pyvgpu.cli.output": "wraps standard output; main.py has 390 lines of subcommands",
    "pyvgpu.cli.top_page": "an HTTP server beside a terminal's screen",
    "pyvgpu.controller.certs.from_secret": LATE,
    "pyvgpu.controller.claims.claim_metrics": LATE,
    "pyvgpu.controller.claims.template_collector": PARTS,
    "pyvgpu.controller.claims.template_maker": PARTS,
    "pyvgpu.controller.scheduler.shell.callers": LATE,
    "pyvgpu.controller.status.status_metrics": LATE,
    "pyvgpu.controller.status.stored_day": "a thread of its own; cluster_state.py has 400 lines",
    "pyvgpu.controller.webhook.shell.server": LATE,
    "pyvgpu.controller.webhook.shell.webhook_metrics": LATE,
    "pyvgpu.controller.webhook.total_validation": PARTS,
    "pyvgpu.deviceplugin.cluster.pod_annotations": AGENT,
    "pyvgpu.deviceplugin.cluster.startup_taint": AGENT,
    "pyvgpu.deviceplugin.containers.grant_pool": "a pool with a lock and a thread of its own",
    "pyvgpu.deviceplugin.devices.mps_clients": AGENT,
    "pyvgpu.deviceplugin.dra.admin_access": AGENT,
    "pyvgpu.deviceplugin.plugin.time_slice_service": AGENT,
    "pyvgpu.kube.kubeconfig_fault": "reads a malformed file; apiserver.py has 500 lines",
    "pyvgpu.region.shared_memory": "decodes one part of the usage file; usages.py has 370 lines",
    "pyvgpu.replay.profile_import": PARTS,
    "pyvgpu.slurm.step_cgroups": "its importer is a program of its own, run as root in each step",
}


def modules():
    """Return the file of each module of the product, by its dotted name."""
    return {
        ".".join((package, *path.relative_to(pure.ROOT / folder).with_suffix("").parts)): path
        for folder, package in PACKAGES.items()
        for path in (pure.ROOT / folder).rglob("*.py")
        if path.name != "__init__.py"
    }


def importers(files):
    """Return the files that import each module, by its dotted name."""
    found = collections.defaultdict(set)
    for path in files:
        for package, names in IMPORT.findall(path.read_text()):
            found[package].add(path)
            for name in re.findall(r"\w+", re.sub(r"#.*| as \w+", "", names)):
                found[f"{package}.{name}"].add(path)
    return found


def test_a_small_module_has_several_importers_or_a_reason():
    known = modules()
    assert len(known) > 300
    users = importers([*known.values(), *(pure.ROOT / "benchmarks").rglob("*.py")])
    small = {
        name
        for name, path in known.items()
        if len(path.read_text().splitlines()) < LEAST_LINES and len(users[name]) == 1
    }
    assert small == set(KEPT)


def test_importers_are_found_by_module_and_by_name(tmp_path):
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text(
        "from pyvgpu.run import (\n    run_files,  # a comment\n    runs as others,\n)\n"
    )
    second.write_text("if True:\n    from pyvgpu.run.runs import RunWatch\n")
    found = importers([first, second])
    assert found["pyvgpu.run.run_files"] == {first}
    assert found["pyvgpu.run.runs"] == {first, second}
    assert "pyvgpu.run.others" not in found
