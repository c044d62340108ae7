"""Model of a pod, its kubelet, two controllers and sidecar-node, to check every order of events.

A state is plain JSON. `events` yields every possible next event with the state after it. The model
covers what matters to a pod's termination: kubelet first writes the status, then acts (starts,
replaces), and does nothing else while it replaces a container; a component decides on the state it
has read, and acts later or dies before; a patch applies only to the version that was read.
"""

import copy
import dataclasses
import datetime
import json

import pod_objects as make

from pyvgpu.controller.sidecar import (
    controller_settings,
    node_requests,
    nodes,
    reconcile,
    sidecar_pods,
    termination_methods,
)

BEGIN = datetime.datetime.fromisoformat(make.AT)
SETTINGS = controller_settings.SidecarSettings()
FAST_EXIT = SETTINGS.fast_exit.image
NODE = "node-1"


class WrongError(Exception):
    """A state or event that must never occur."""


@dataclasses.dataclass(frozen=True)
class Scene:
    """A pod, and the behaviour of its containers."""

    pod: dict
    codes: dict  # main container -> its exit codes, one per run
    on_signal: dict  # sidecar -> its exit code, None if it ignores signals
    around: termination_methods.Surroundings
    by_itself: int | None = None  # exit code with which a sidecar's first run may end any time
    broken: frozenset = frozenset()  # images that cannot be pulled
    backoff_limit: int = 6  # of its Job
    deletes: bool = False  # a user may delete the pod at any time
    kubelet_dies: bool = False  # once, while it replaces a container; it then forgets that


def around(live=True, virtual=False, job=None, has_fast_exit=True, images=None):
    there = nodes.NodeState(
        NODE, virtual, live, (1, 36), has_fast_exit, pulls_fast_exit=virtual, images=images or {}
    )
    return termination_methods.Surroundings(there, job)


def begin(scene):
    pod = copy.deepcopy(scene.pod)
    pod["status"] = {"phase": "Pending", "containerStatuses": []}
    return {
        "pod": pod,
        "runtime": {},  # container -> its newest run
        "replacing": [],  # containers that kubelet restarts once they have ended
        "died": False,  # whether kubelet has died
        "replaced": [],  # ids of runs that kubelet has announced to kill for that
        "patches": [None, None],  # each controller's pending patch
        "stops": None,  # sidecar-node's pending stops
        "seconds": 0,
        "writes": 0,  # to the pod
        "limit": scene.backoff_limit,
    }


def key(state):
    return json.dumps(state, sort_keys=True)


def phase_of(state):
    return state["pod"]["status"]["phase"]


def is_over(state):
    return phase_of(state) in ("Succeeded", "Failed") or deleted(state)


def deleted(state):
    return "deletionTimestamp" in state["pod"]["metadata"]


def last_codes(scene, state):
    return [state["runtime"][name]["code"] for name in scene.codes]


def events(scene, state):
    """Yield each possible next event, with the state after it."""
    if is_over(state):
        return
    for name, run in state["runtime"].items():
        yield from _ends(scene, state, name, run)
    yield from _kubelet(scene, state)
    for number in range(len(state["patches"])):
        yield from _controller(scene, state, number)
    if scene.around.node.live:
        yield from _node_part(state)
    yield from _time(state)
    if scene.deletes:
        after = _changed(state)
        after["pod"]["metadata"]["deletionTimestamp"] = make.AT
        yield "delete", after


def _ends(scene, state, name, run):
    if run["code"] is not None:
        return
    if name in scene.codes:
        codes = scene.codes[name]
        yield f"{name} ends", _ended(state, name, codes[min(run["number"], len(codes) - 1)])
        return
    if run["image"] == FAST_EXIT:
        yield f"{name} ends at once", _ended(state, name, 0)
        return
    if scene.by_itself is not None and run["number"] == 0:
        yield f"{name} ends by itself", _ended(state, name, scene.by_itself)
    if run["signalled"]:
        code = scene.on_signal[name]
        if code is not None:
            yield f"{name} obeys", _ended(state, name, code)
        elif run["kill_at"] is not None and state["seconds"] >= run["kill_at"]:
            yield f"{name} is killed", _ended(state, name, 137)


def _ended(state, name, code):
    after = copy.deepcopy(state)
    after["runtime"][name]["code"] = code
    return after


def _signal(state, name, seconds):
    run = state["runtime"][name]
    run["signalled"] = True
    if seconds is None:
        return
    kill_at = state["seconds"] + seconds
    run["kill_at"] = kill_at if run["kill_at"] is None else min(run["kill_at"], kill_at)


def _start(state, spec):
    before = state["runtime"].get(spec["name"])
    number = before["number"] + 1 if before else 0
    state["runtime"][spec["name"]] = {
        "id": f"containerd://{spec['name']}-{number}",
        "number": number,
        "image": spec["image"],
        "code": None,
        "signalled": False,
        "kill_at": None,
    }


def _kubelet(scene, state):
    specs = {spec["name"]: spec for spec in state["pod"]["spec"]["containers"]}
    if state["replacing"]:
        if all(state["runtime"][name]["code"] is not None for name in state["replacing"]):
            after = copy.deepcopy(state)
            for name in state["replacing"]:
                _start(after, specs[name])
            after["replacing"] = []
            yield "kubelet starts what it replaced", after
        if scene.kubelet_dies and not state["died"]:
            after = copy.deepcopy(state)
            after["died"] = True
            after["replacing"] = []
            yield "kubelet dies", after
        return
    after = copy.deepcopy(state)
    status = _status(state, scene)
    if status != state["pod"]["status"]:
        after = _changed(state)
        after["pod"]["status"] = status
    if status["phase"] not in ("Succeeded", "Failed"):
        _act(scene, after, specs)
    if after != state:
        yield "kubelet", after


def _act(scene, state, specs):
    read = sidecar_pods.read(state["pod"])
    for name, spec in specs.items():
        run = state["runtime"].get(name)
        if run is None or run["code"] is not None:
            if (run is None or read.container(name).will_restart(run["code"])) and (
                spec["image"] not in scene.broken
            ):
                _start(state, spec)
        elif run["image"] != spec["image"]:
            _signal(state, name, read.grace_seconds)
            state["replacing"].append(name)
            if run["id"] not in state["replaced"]:
                state["replaced"].append(run["id"])


def _status(state, scene):
    statuses = []
    for spec in state["pod"]["spec"]["containers"]:
        name = spec["name"]
        run = state["runtime"].get(name)
        if run is None:
            reason = "ImagePullBackOff" if spec["image"] in scene.broken else "ContainerCreating"
            status = make.waiting(reason)
        elif run["code"] is None:
            status = make.running(run["id"])
        else:
            status = make.ended(run["code"], run["id"])
        statuses.append({"name": name, "restartCount": 0, **status})
        if run is not None:
            statuses[-1]["restartCount"] = run["number"]
    pod = {**state["pod"], "status": {"containerStatuses": statuses}}
    return {"phase": _phase(sidecar_pods.read(pod)), "containerStatuses": statuses}


def _phase(pod):
    """Return the phase as kubelet computes it (getPhase, with container restart rules)."""
    if any(entry.state is sidecar_pods.ContainerState.WAITING for entry in pod.containers):
        return "Pending"
    if not all(entry.ended_for_good for entry in pod.containers):
        return "Running"
    succeeded = all(entry.exit_code == 0 for entry in pod.containers)
    return "Succeeded" if succeeded else "Failed"


def _changed(state):
    """Return a copy with a new version of the pod, which invalidates pending patches."""
    after = copy.deepcopy(state)
    after["patches"] = [None] * len(state["patches"])
    return after


def _controller(scene, state, number):
    if state["patches"][number] is None:
        now = BEGIN + datetime.timedelta(seconds=state["seconds"])
        moment = reconcile.DecisionMoment(now, lambda: 0.5)
        job = termination_methods.OwningJob(
            state["limit"], _restarts(state), 1, "train", "uid-job", "1"
        )
        known = dataclasses.replace(scene.around, job=job)
        patch = reconcile.reconcile(sidecar_pods.read(state["pod"]), known, moment, SETTINGS).patch
        if patch is not None:
            if deleted(state):
                raise WrongError("a pod that is being deleted is to be written to")
            after = copy.deepcopy(state)
            after["patches"][number] = [patch.resource, patch.operations]
            yield f"controller {number} decides", after
        return
    after = copy.deepcopy(state)
    after["patches"][number] = None
    yield f"controller {number} dies", after
    if not _mains_done(scene, state):
        raise WrongError("sidecars are to end while the main containers work")
    after = _changed(state)
    resource, operations = state["patches"][number]
    if resource == "jobs":
        after["limit"] = operations[-1]["value"]
    else:
        after["pod"] = apply(state["pod"], operations)
        after["writes"] += 1
    yield f"controller {number} writes", after


def _restarts(state):
    return sum(entry["restartCount"] for entry in state["pod"]["status"]["containerStatuses"])


def fails_its_job(state):
    """Return whether the Job controller fails this pod's Job for its restarts."""
    policy = state["pod"]["spec"]["restartPolicy"]
    reached = _restarts(state) >= max(state["limit"], 1)
    return policy == "OnFailure" and not is_over(state) and reached


def _mains_done(scene, state):
    read = sidecar_pods.read(state["pod"])
    runs = {name: state["runtime"].get(name) for name in scene.codes}
    return all(
        run is not None
        and run["code"] is not None
        and not read.container(name).will_restart(run["code"])
        for name, run in runs.items()
    )


def _node_part(state):
    if state["stops"] is None:
        runtime = [
            node_requests.Running(name, run["id"], run["code"])
            for name, run in state["runtime"].items()
        ]
        answer = node_requests.check(
            sidecar_pods.read(state["pod"]), NODE, runtime, frozenset(state["replaced"])
        )
        wanted = [
            [stop.name, stop.id, stop.grace_seconds if stop.kill else None]
            for stop in answer.stops
            if not _is_stopped(state, stop)
        ]
        if wanted:
            after = copy.deepcopy(state)
            after["stops"] = wanted
            yield "node part decides", after
        return
    after = copy.deepcopy(state)
    after["stops"] = None
    yield "node part dies", after
    after = copy.deepcopy(state)
    after["stops"] = None
    for name, identity, seconds in state["stops"]:
        run = after["runtime"][name]
        if run["id"] == identity and run["code"] is None:
            _signal(after, name, seconds)
            run["stopped"] = True
    yield "node part stops", after


def _is_stopped(state, stop):
    """Return whether the runtime is already stopping it, no later than this stop would."""
    run = state["runtime"][stop.name]
    if not stop.kill:
        return run["signalled"]
    return run["kill_at"] is not None and run["kill_at"] <= state["seconds"] + stop.grace_seconds


def _time(state):
    """Advance the time to the next deadline."""
    later = [
        run["kill_at"]
        for run in state["runtime"].values()
        if run["code"] is None and run["kill_at"] is not None
    ]
    record = json.loads(
        state["pod"]["metadata"].get("annotations", {}).get("pyvgpu.io/sidecar-stop", "null")
    )
    if record:
        at = datetime.datetime.fromisoformat(record["at"]) - BEGIN
        later.append(at.total_seconds() + record["seconds"])
    later = [seconds for seconds in later if seconds > state["seconds"]]
    if later:
        after = copy.deepcopy(state)
        after["seconds"] = min(later)
        yield "time passes", after


def apply(document, operations):
    """Apply a JSON patch; WrongError if a test operation fails."""
    document = copy.deepcopy(document)
    for operation in operations:
        *way, last = (
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"][1:].split("/")
        )
        parent = document
        for part in way:
            parent = parent[int(part)] if isinstance(parent, list) else parent[part]
        if isinstance(parent, list):
            last = len(parent) if last == "-" else int(last)
        if operation["op"] == "test":
            if parent[last] != operation["value"]:
                raise WrongError(f"a patch is refused: {operation}")
        elif operation["op"] == "remove":
            del parent[last]
        elif isinstance(parent, list):
            parent.insert(last, copy.deepcopy(operation["value"]))
        else:
            parent[last] = copy.deepcopy(operation["value"])
    return document


def explore(scene, most=20_000):
    """Return all reachable states, each with its history, and the successors of each."""
    first = begin(scene)
    seen = {key(first): (first, ())}
    following = {}
    todo = [key(first)]
    while todo:
        at = todo.pop()
        state, history = seen[at]
        following[at] = []
        for event, after in events(scene, state):
            then = key(after)
            following[at].append(then)
            if then not in seen:
                seen[then] = (after, (history, event))
                todo.append(then)
        if len(seen) > most:
            raise WrongError(f"more than {most} states")
    return seen, following


def story(history):
    """Return the events that led to a state."""
    passed = []
    while history:
        history, event = history
        passed.append(event)
    return " > ".join(reversed(passed))


def cannot_end(seen, following):
    """Return the states from which the pod can no longer terminate."""
    before = {at: [] for at in seen}
    for at, nexts in following.items():
        for then in nexts:
            before[then].append(at)
    good = [at for at, (state, _) in seen.items() if is_over(state)]
    ends = set(good)
    while good:
        for at in before[good.pop()]:
            if at not in ends:
                ends.add(at)
                good.append(at)
    return [at for at in seen if at not in ends]
