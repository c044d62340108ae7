/* SPDX-License-Identifier: Apache-2.0 */
/* test_slot.c -- processes that die: with memory, with locks, after a fork, concurrently; and
 * processes that are stopped. */
#include "machine.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define MIB UINT64_C(0x100000)

static const char conf[] = "pyvgpu-machine 1\n"
                           "driver_release=999.1\ncuda_version=13000\nmode=timed\nkernel_ns=1\n"
                           "device=0\nuuid=GPU-0\npci=0000:01:00.0\nname=test\n"
                           "memory_bytes=1073741824\ncontext_bytes=1048576\nsm_count=10\n"
                           "compute_capability=9.0\nsm_clock_khz=1\nmemory_clock_khz=1\n"
                           "memory_bus_bits=1\nmemory_bandwidth=1\npcie_bandwidth=1\nl2_bytes=1\n"
                           "power_limit_mw=1\nnuma_node=0\n";

static char folder[] = "/tmp/pyvgpu-test-slot-XXXXXX";
static struct machine *machine;

static void make_machine(void)
{
    char path[64];
    FILE *file;

    if (!mkdtemp(folder))
        abort();
    snprintf(path, sizeof(path), "%s/machine.conf", folder);
    file = fopen(path, "w");
    if (!file || fputs(conf, file) < 0 || fclose(file))
        abort();
    setenv("PYVGPU_SIMULATED_MACHINE", folder, 1);
}

static void remove_machine(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -r %s", folder);
    if (system(command))
        abort();
}

/* Run what in a process of its own, and return how it ended. */
static int in_child(void (*what)(void))
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        what();
        _exit(0);
    }
    waitpid(child, &status, 0);
    return status;
}

static uint64_t used(void)
{
    machine_reap(machine, true);
    return machine_used_bytes(machine, 0);
}

static void take_and_die(void)
{
    int slot = machine_claim_slot(machine);

    if (slot < 0 || !machine_charge(machine, 0, (uint32_t) slot, 700 * MIB))
        _exit(1);
    kill(getpid(), SIGKILL);
}

static void dead_processs_bytes_are_reclaimed(void)
{
    CHECK("it was killed", WTERMSIG(in_child(take_and_die)) == SIGKILL);
    CHECK_EQUAL("its bytes are still counted", machine_used_bytes(machine, 0), 700 * MIB);
    CHECK_EQUAL("until the next reap", used(), 0);
}

static void refusal_reaps_dead_processes_first(void)
{
    int slot = machine_claim_slot(machine);

    CHECK("a slot", slot >= 0);
    CHECK("it was killed", WTERMSIG(in_child(take_and_die)) == SIGKILL);
    CHECK("the bytes of the dead are there for the living",
          machine_charge(machine, 0, (uint32_t) slot, 600 * MIB));
    CHECK("but no more than there are", !machine_charge(machine, 0, (uint32_t) slot, 500 * MIB));
    CHECK_EQUAL("a refusal takes nothing", used(), 600 * MIB);
    machine_release_slot(machine, (uint32_t) slot);
    CHECK_EQUAL("a release gives all back", used(), 0);
}

static void dead_processes_add_no_peak(void)
{
    struct machine_account *account = &machine->state->accounts[0];
    int slot = machine_claim_slot(machine);

    CHECK_EQUAL("no peak was requested", account->peak, UINT64_MAX);
    account->peak = 0;
    CHECK("a slot", slot >= 0);
    CHECK("it was killed", WTERMSIG(in_child(take_and_die)) == SIGKILL);
    CHECK("bytes", machine_charge(machine, 0, (uint32_t) slot, 300 * MIB));
    CHECK_EQUAL("the peak is the dead one's", account->peak, 700 * MIB);
    CHECK("more bytes", machine_charge(machine, 0, (uint32_t) slot, 500 * MIB));
    CHECK_EQUAL("until the living have more", account->peak, 800 * MIB);
    machine_release_slot(machine, (uint32_t) slot);
    CHECK_EQUAL("it stays", account->peak, 800 * MIB);
    account->peak = UINT64_MAX;
}

static void take_after_the_release(void)
{
    int slot = machine_claim_slot(machine);

    if (slot < 0)
        _exit(1);
    machine_release_slot(machine, (uint32_t) slot);
    if (machine_claim_slot(machine) == slot)
        _exit(2);
    if (!machine_charge(machine, 0, (uint32_t) slot, 300 * MIB))
        _exit(3);
}

/* A thread may be inside a call while another one exits the process. */
static void slot_belongs_to_its_process_until_death(void)
{
    CHECK_EQUAL("what it gave back is no stranger's yet", in_child(take_after_the_release), 0);
    CHECK_EQUAL("and what it took meanwhile comes back, too", used(), 0);
}

static void die_with_the_locks(void)
{
    if (machine_claim_slot(machine) < 0)
        _exit(1);
    machine_lock_slots(machine);
    machine_lock_device(machine, 0);
    machine_lock(&machine->state->accounts[0].lock);
    machine->state->accounts[0].used += MIB;
    kill(getpid(), SIGKILL);
}

static void locks_of_dead_processes_are_recovered(void)
{
    for (int i = 0; i < 3; i++)
        CHECK("it was killed", WTERMSIG(in_child(die_with_the_locks)) == SIGKILL);
    CHECK_EQUAL("its locks block no process", used(), 0);
    CHECK_EQUAL("and their sums are right", machine->state->accounts[0].used, 0);
    machine_advance_device(machine, 0);
    machine_unlock_device(machine, 0);
}

static void fork_and_die(void)
{
    int slot = machine_claim_slot(machine);
    pid_t child;

    if (slot < 0 || !machine_charge(machine, 0, (uint32_t) slot, 300 * MIB))
        _exit(1);
    child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    machine->state->slots[slot].unused[0] = (uint64_t) child;
    kill(getpid(), SIGKILL);
}

static pid_t leave_an_orphan(void)
{
    pid_t orphan = 0;

    CHECK("it was killed", WTERMSIG(in_child(fork_and_die)) == SIGKILL);
    for (uint32_t slot = 0; slot < machine->state->slot_limit; slot++) {
        if (machine->state->slots[slot].unused[0])
            orphan = (pid_t) machine->state->slots[slot].unused[0];
        machine->state->slots[slot].unused[0] = 0;
    }
    CHECK("its child lives", orphan && kill(orphan, 0) == 0);
    return orphan;
}

static void child_keeps_its_dead_parents_memory(void)
{
    pid_t orphan = leave_an_orphan();

    CHECK_EQUAL("it is held", used(), 300 * MIB);
    if (orphan)
        kill(orphan, SIGKILL);
    for (int tries = 0; tries < 10000 && used(); tries++)
        usleep(1000);
    CHECK_EQUAL("until the child has ended, too", used(), 0);
}

static void child_keeps_nothing_if_the_law_says_so(void)
{
    pid_t orphan;

    machine->config.law.fork_keeps = false;
    orphan = leave_an_orphan();
    CHECK_EQUAL("nothing is held", used(), 0);
    machine->config.law.fork_keeps = true;
    if (orphan)
        kill(orphan, SIGKILL);
}

static void churn(void)
{
    int slot = machine_claim_slot(machine);

    srand((unsigned int) getpid());
    if (slot < 0)
        _exit(1);
    for (;;) {
        uint64_t bytes = (uint64_t) (rand() % 400 + 1) * MIB;
        if (!machine_charge(machine, 0, (uint32_t) slot, bytes))
            continue;
        if (machine_used_bytes(machine, 0) > 1024 * MIB + 8 * 400 * MIB)
            _exit(1);
        machine_discharge(machine, 0, (uint32_t) slot, bytes);
    }
}

static void stop_with_a_lock(void)
{
    machine_lock_slots(machine);
    raise(SIGSTOP);
    machine_unlock_slots(machine);
    pause();
}

static void stop_without_a_lock(void)
{
    machine_lock_slots(machine);
    machine_unlock_slots(machine);
    raise(SIGSTOP);
    pause();
}

/* Is a process that stops in *what* continued, once another process has taken the lock? */
static bool goes_on(void (*what)(void))
{
    pid_t child = fork();
    int status = 0;
    bool went_on;

    if (child == 0) {
        what();
        _exit(0);
    }
    waitpid(child, &status, WUNTRACED);
    CHECK("it was stopped", WIFSTOPPED(status));
    machine_lock_slots(machine);
    machine_unlock_slots(machine);
    went_on = waitpid(child, &status, WCONTINUED | WNOHANG) == child && WIFCONTINUED(status);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return went_on;
}

static void stopped_lock_holder_is_continued(void)
{
    CHECK("a lock holder is continued", goes_on(stop_with_a_lock));
    CHECK("any other process stays stopped", !goes_on(stop_without_a_lock));
}

static void many_at_once(void)
{
    enum { PROCESSES = 8 };
    pid_t children[PROCESSES];
    int status;
    bool fine = true;

    machine->state->accounts[0].peak = 0;
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            churn();
            _exit(1);
        }
    }
    for (int i = 0; i < 200; i++) {
        int victim = rand() % PROCESSES;
        usleep(1000);
        kill(children[victim], SIGKILL);
        waitpid(children[victim], &status, 0);
        fine &= WIFSIGNALED(status);
        children[victim] = fork();
        if (children[victim] == 0) {
            churn();
            _exit(1);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        kill(children[i], SIGKILL);
        waitpid(children[i], &status, 0);
        fine &= WIFSIGNALED(status);
    }
    CHECK("none of them ended by itself", fine);
    CHECK_EQUAL("all bytes came back", used(), 0);
    CHECK_EQUAL("the sum too", machine->state->accounts[0].used, 0);
    CHECK("there never were more than there are", machine->state->accounts[0].peak <= 1024 * MIB);
    CHECK("slots are used again", machine->state->slot_limit <= PROCESSES + 2);
}

int main(void)
{
    make_machine();
    if (machine_open(&machine) != MACHINE_READY)
        return 1;
    dead_processs_bytes_are_reclaimed();
    refusal_reaps_dead_processes_first();
    dead_processes_add_no_peak();
    slot_belongs_to_its_process_until_death();
    locks_of_dead_processes_are_recovered();
    stopped_lock_holder_is_continued();
    child_keeps_its_dead_parents_memory();
    child_keeps_nothing_if_the_law_says_so();
    many_at_once();
    remove_machine();
    return check_end();
}
