"""Short constructors of pods with sidecars, as the API server returns them."""

from pyvgpu.controller.webhook import review

MARKED = {"SIDECAR_TERMINATION": "true"}
AT = "2026-11-21T10:00:00Z"


RESTARTS_ALL = {  # a native sidecar whose exit code 42 restarts every container
    "name": "mesh",
    "restartPolicy": "Always",
    "restartPolicyRules": [
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
    ],
}


def running(container_id="containerd://1"):
    return {"state": {"running": {"startedAt": AT}}, "containerID": container_id}


def ended(code, container_id="containerd://1", at=AT):
    state = {"terminated": {"exitCode": code, "finishedAt": at}}
    return {"state": state, "containerID": container_id}


def waiting(reason="ContainerCreating", after=None, restarts=0):
    """Return a waiting status, with the exit code *after* as its last state if given."""
    last = {} if after is None else {"terminated": {"exitCode": after, "finishedAt": AT}}
    return {"state": {"waiting": {"reason": reason}}, "lastState": last, "restartCount": restarts}


def container(name, status=None, environment=None, **spec):
    """Return a pair of container spec and status, for pod()."""
    env = [{"name": key, "value": value} for key, value in (environment or {}).items()]
    spec = {
        "name": name,
        "image": f"{name}:1",
        "env": env,
        "imagePullPolicy": "IfNotPresent",
        **spec,
    }
    return spec, None if status is None else {"name": name, "restartCount": 0, **status}


def sidecar(name="log", status=None, environment=None, **spec):
    return container(
        name, status or running("containerd://log"), {**MARKED, **(environment or {})}, **spec
    )


def pod(*containers, policy="Never", phase="Running", conditions=(), metadata=None, **spec):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "team",
            "name": "train-0",
            "uid": "uid-1",
            "resourceVersion": "7",
            **(metadata or {}),
        },
        "spec": {
            "restartPolicy": policy,
            "nodeName": "node-1",
            "terminationGracePeriodSeconds": 30,
            "containers": [described for described, _ in containers],
            **spec,
        },
        "status": {
            "phase": phase,
            "conditions": [{"type": name, "status": "True"} for name in conditions],
            "containerStatuses": [status for _, status in containers if status],
        },
    }


def asked(pod, **more):
    """Return the AdmissionReview that the API server sends a webhook for a new pod."""
    request = {
        "uid": "u-1",
        "operation": "CREATE",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "team",
        "object": pod,
        **more,
    }
    return {"apiVersion": review.API_VERSION, "kind": review.KIND, "request": request}
