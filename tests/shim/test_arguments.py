"""NULL and invalid arguments to every hook: the result is the driver's, and nothing is charged."""

import hook_table
import nonsense
import pytest
import rights
import shim_room

from pyvgpu import names

KILLED = -1
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 0, 1, 2, 3
NOT_PERMITTED, NOT_SUPPORTED = 800, 801
# The shim never passes these to the driver: test_nvml_setters.py.
NEVER_ASKED = {"setter", "setter_other", "hidden", "hidden_other"}
# It lists none of the driver's pids where they do not count, and no list is too short for none.
LISTS_NONE = set() if rights.IN_FIRST_PID_NAMESPACE else {"nvmlDeviceGetAccountingPids"}
# Taken at once, and what is wrong shows later: a value never comes, a function is none.
LATER = ("cuStreamWaitValue", "cuStreamAddCallback", "cuLaunchHostFunc")
HOOKS = [
    hook
    for hook in hook_table.cuda() + hook_table.nvml()
    if hook.area not in NEVER_ASKED
    and hook.symbol not in LISTS_NONE
    and not hook.symbol.startswith(LATER)
]


def test_every_argument_of_every_hook_is_invalid_once():
    called = {(symbol, len(row)) for symbol, row in nonsense.cases(HOOKS)}
    assert called == {(hook.symbol, len(hook.parameters)) for hook in HOOKS}


def is_the_drivers(case, held, bare):
    """Is a result the driver's, or one that the shim returns before it can know the driver's?"""
    over_quota = nonsense.is_wrong_more_than_once(case) and held.result == OUT_OF_MEMORY
    too_early = held.result == NOT_INITIALIZED and bare.result == NOT_SUPPORTED
    if case[0] == "cuCtxSetLimit" and held.result == OUT_OF_MEMORY:
        return True  # a stack that no device can hold
    if bare.result == KILLED and held.result == INVALID_VALUE:
        return True  # the driver follows a handle wherever it leads, the shim knows better
    if case[0] == "cuLaunchGridAsync" and held.result == KILLED:
        return bare.result == NOT_SUPPORTED  # a stream is marked where the driver would follow it
    if case[0].startswith("cuCheckpointProcess") and held.result == NOT_PERMITTED:
        return bare.result != SUCCESS  # the pid is of no process of the run, or of no process
    return held.result == bare.result or (bare.result != SUCCESS and (over_quota or too_early))


@pytest.mark.slow
@pytest.mark.timeout(1200)  # thousands of calls, some of which wait for their share
@pytest.mark.parametrize(
    ("state", "vcore"),
    [("never", 100), ("initialised", 100), ("current", 100), ("initialised", 50), ("current", 50)],
)
def test_invalid_arguments_get_the_drivers_results(make_room, machine, state, vcore):
    room = make_room(machine, vmemory=machine.devices[0].memory_bytes, vcore=vcore)
    cases = nonsense.cases(HOOKS)
    held = nonsense.ask(room.environment(), state, cases, str(room.folder / names.USAGE_FILE))
    bare = nonsense.ask(shim_room.bare_environment(machine), state, cases)
    wrong = [
        f"{nonsense.words(case)}: {held[case]}, the driver: {bare[case]}"
        for case in cases
        if not is_the_drivers(case, held[case], bare[case])
        or (
            bare[case].result != SUCCESS
            and (held[case].wrote, held[case].charged) != (bare[case].wrote, 0)
        )
    ]
    assert not wrong, "\n".join(wrong)
    assert sum(bare[case].result != SUCCESS for case in cases) > len(cases) / 4
