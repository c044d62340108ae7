"""Computes the argv that kubelet gives a container from its command, args and variables."""

from pyvgpu.controller.sidecar import sidecar_pods
from pyvgpu.controller.webhook import argv


def expand(element, environment):
    """Return *element* of command or args with its $(VAR) references expanded."""
    return "".join(
        token.text
        if isinstance(token, argv.Literal)
        else environment.get(token.name, f"$({token.name})")
        for token in argv.parse(element)
    )


def run(container, annotations=None):
    """Return the argv after the image's ENTRYPOINT; *annotations* serve the downward API."""
    environment = {}
    for variable in container.get("env", ()):
        annotation = sidecar_pods.annotation_of(variable)
        if annotation is None:
            environment[variable["name"]] = variable.get("value", "")
        else:
            environment[variable["name"]] = (annotations or {}).get(annotation, "")
    elements = (*container.get("command", ()), *container.get("args", ()))
    return [expand(element, environment) for element in elements]
