"""Short constructors of pods that request devices, as the API server returns them."""

from __future__ import annotations

from typing import Any

OURS = ("pyvgpu.io/vcore", "pyvgpu.io/vmemory")
GAIA = ("tencent.com/vcuda-core", "tencent.com/vcuda-memory")


def container(
    name: str,
    vcore: int | str | None,
    vmemory: int | str | None = None,
    names: tuple[str, str] = OURS,
) -> dict[str, Any]:
    """Return a container with these limits; an amount of None is left out."""
    said = zip(names, (vcore, vmemory), strict=True)
    return asking(name, {key: str(value) for key, value in said if value is not None})


def asking(name: str, amounts: dict[str, str]) -> dict[str, Any]:
    """Return a container with these limits and requests."""
    resources = {"limits": dict(amounts), "requests": dict(amounts)} if amounts else {}
    return {"name": name, "image": "a:1", "resources": resources}


def pod(
    *containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """Return a pod as admission webhooks receive it."""
    metadata: dict[str, Any] = {"generateName": "p-", "namespace": "team"}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "containers": list(containers),
            "schedulerName": "default-scheduler",
            **spec,
        },
    }


def asked(pod: dict[str, Any], name: str) -> tuple[int, int]:
    """Return the vcore and the vmemory that a container of *pod* requests."""
    spec = pod["spec"]
    everyone = [*spec["containers"], *(spec.get("initContainers") or ())]
    (found,) = (candidate for candidate in everyone if candidate["name"] == name)
    resources = found["resources"]
    assert resources["limits"] == resources["requests"]
    return int(resources["limits"][OURS[0]]), int(resources["limits"].get(OURS[1], "0"))


def no_claims(namespace: str, specs: dict[str, Any], dry_run: bool) -> None:
    """Replace the creator of ResourceClaimTemplates where a test expects none; always fails."""
    raise AssertionError((namespace, specs, dry_run))
