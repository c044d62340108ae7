"""Variables, annotations and labels that mark sidecars and carry their options."""

from __future__ import annotations

from pyvgpu import names

YES = frozenset({"true", "1", "yes", "on", "ture"})  # the idea's first publication says "ture"
NO = frozenset({"false", "0", "no", "off", ""})

MARKS: tuple[tuple[str, frozenset[str]], ...] = (  # variable in upper case, values in lower case
    (names.SIDECAR_VARIABLE, YES),
    ("KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", YES),
    ("ECI_CONTAINER_TYPE", frozenset({"sidecar"})),
)
ECI_IGNORE = "ECI_CONTAINER_IGNORE_EXIT_CODE"  # Alibaba's, a variable of the container
BCI_IGNORE = "bci.virtual-kubelet.io/bci-ignore-exit-code-containers"  # Baidu's, an annotation

GRACE_SECONDS = f"{names.SIDECAR_VARIABLE}_GRACE_SECONDS"
ORDER = f"{names.SIDECAR_VARIABLE}_ORDER"
COMMAND = f"{names.SIDECAR_VARIABLE}_COMMAND"
EXITS_ZERO = f"{names.SIDECAR_VARIABLE}_EXITS_ZERO"
VARIABLES = (names.SIDECAR_VARIABLE, EXITS_ZERO, GRACE_SECONDS, ORDER, COMMAND)

OTHERS_OWN = ("workflows.argoproj.io/",)  # labels of pods whose controller ends its own sidecars
