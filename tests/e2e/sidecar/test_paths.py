"""Every termination method: pod and Job end by the main container alone.

All Jobs of a table start at once, and each test checks its own.
"""

import dataclasses

import pytest
import rig
import sidecars

pytestmark = pytest.mark.e2e

SIDES = {0: rig.ENDS_WITH_0, 143: rig.ENDS_WITH_143, 137: rig.IGNORES_TERM}
OPTIONS = {"stop": {"EXITS_ZERO": "true"}, "swap": {}, "hybrid": {"GRACE_SECONDS": "1"}}


@dataclasses.dataclass(frozen=True)
class Case:
    path: str
    code: int  # the sidecar's exit code on SIGTERM or SIGKILL
    main: int = 0
    policy: str = "Never"
    backoff_limit: int = 0

    @property
    def name(self):
        limit = f"{self.policy.lower()}-{self.backoff_limit}"
        return f"{self.path}-{self.code}-main-{self.main}-{limit}"

    def create(self, space):
        """Create its Job, whose work starts when the sidecar has set its handler."""
        begins = SIDES[self.code].replace(rig.RUNS, f"echo > /up/side; {rig.RUNS}")
        side = sidecars.sidecar(begins, **OPTIONS[self.path])
        works = f"until [ -e /up/side ]; do sleep 0.1; done; sleep 1; exit {self.main}"
        main = rig.container("main", works)
        for container in (main, side):
            container["volumeMounts"] = [{"name": "up", "mountPath": "/up"}]
        sidecars.create_job(
            space,
            main,
            side,
            name=self.name,
            job={"backoffLimit": self.backoff_limit},
            restartPolicy=self.policy,
            # Time enough for a sidecar that obeys SIGTERM; the others use up their grace period.
            terminationGracePeriodSeconds=3 if self.code == 137 else 60,
            volumes=[{"name": "up", "emptyDir": {}}],
        )

    def check(self, space):
        condition, phase = ("Failed", "Failed") if self.main else ("Complete", "Succeeded")
        pod = sidecars.has_ended(space, condition, self.name)
        assert (rig.phase(pod), rig.exit_code(pod, "side")) == (phase, 0)
        last = rig.state(pod, "side").get("lastState", {}).get("terminated", {})
        if self.path == "stop":  # may need no decision of the controller
            assert (last, rig.state(pod, "side")["image"]) == ({}, rig.BUSYBOX)
        else:
            assert sidecars.record(pod)["containers"]["side"]["path"] == self.path
            # Only if kubelet still reports the first run after the second.
            assert last.get("exitCode", self.code) == self.code
        raised = self.policy == "OnFailure" and self.path != "stop"
        limit = space.read("jobs", self.name)["spec"]["backoffLimit"]
        assert limit == (max(self.backoff_limit, 2) if raised else self.backoff_limit)


NEVER = [
    Case(path, code, main)
    for main in (0, 3)
    for path, codes in {"stop": (0,), "swap": (0, 143, 137), "hybrid": (0, 143, 137)}.items()
    for code in codes
]
ON_FAILURE = [
    Case(path, code, policy="OnFailure", backoff_limit=limit)
    for limit in (0, 1, 6)
    for path, code in (("stop", 0), ("swap", 143), ("swap", 137), ("hybrid", 137))
]


@pytest.fixture(scope="module")
def jobs(parts):
    with rig.space() as made:
        for case in (*NEVER, *ON_FAILURE):
            case.create(made)
        yield made


@pytest.mark.row(1)
@pytest.mark.parametrize("case", NEVER, ids=lambda case: case.name)
def test_with_never_pod_and_job_depend_only_on_the_main_container(jobs, case):
    case.check(jobs)


@pytest.mark.row(3)
@pytest.mark.parametrize("case", ON_FAILURE, ids=lambda case: case.name)
def test_with_on_failure_a_job_completes_with_any_backoff_limit(jobs, case):
    case.check(jobs)
