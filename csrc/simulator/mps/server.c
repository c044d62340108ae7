/* SPDX-License-Identifier: Apache-2.0 */
/* server.c -- the simulated MPS server: a process that has a context on each of its devices. */
#include "control.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/visible.h"

static bool open_context(struct machine *machine, uint32_t slot, uint32_t device)
{
    if (!machine_make_lane(machine, device, slot) ||
        !machine_charge(machine, device, slot, machine->config.law.mps_server_bytes))
        return false;
    atomic_fetch_add(&machine->state->uses[device][slot].contexts, 1);
    return true;
}

int server_main(int report)
{
    int devices[CONFIG_DEVICES];
    struct machine *machine;
    uint64_t bits = 0;
    int slot, count;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (machine_open(&machine) != MACHINE_READY)
        return 1;
    slot = machine_claim_slot(machine);
    if (slot < 0)
        return 1;
    count = visible_now(machine, devices);
    for (int i = 0; i < count; i++) {
        if (!open_context(machine, (uint32_t) slot, (uint32_t) devices[i]))
            return 1;
        bits |= UINT64_C(1) << devices[i];
    }
    if (!count || dprintf(report, "%d %" PRIx64 "\n", slot, bits) < 0)
        return 1;
    close(report);
    for (;;)
        pause();
}

/* In the child: become the server. */
__attribute__((noreturn)) static void run_server(uid_t uid, int report)
{
    char number[16];

    if (uid != geteuid() && (setgroups(0, NULL) || setgid((gid_t) uid) || setuid(uid)))
        _exit(1);
    fcntl(report, F_SETFD, 0);
    snprintf(number, sizeof(number), "%d", report);
    execl("/proc/self/exe", "nvidia-cuda-mps-server", number, (char *) NULL);
    _exit(1);
}

bool server_start(struct control *control, uid_t uid)
{
    int ends[2];
    FILE *report;
    bool started;

    if (pipe2(ends, O_CLOEXEC))
        return false;
    control_log(control->log, "Starting new server for user %u", (unsigned int) uid);
    control->server = fork();
    if (control->server == 0)
        run_server(uid, ends[1]);
    close(ends[1]);
    report = fdopen(ends[0], "r");
    started = control->server > 0 && report &&
              fscanf(report, "%" SCNu32 " %" SCNx64, &control->server_slot,
                     &control->server_devices) == 2;
    if (report)
        fclose(report);
    if (!started) {
        control_log(control->log, "Failed to start a server");
        server_end(control);
        return false;
    }
    control->server_uid = uid;
    control->server_percent = control->percent;
    control->server_memory_mib = control->memory_mib;
    control_log(control->server_log, "Server %d active", (int) control->server);
    return true;
}

/* Its clients have lost it. */
static void note_end(struct control *control, int status)
{
    control_log(control->server_log, "Server %d exited with %s %d", (int) control->server,
                WIFSIGNALED(status) ? "signal" : "status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    mps_fail(control->machine, control->server_slot, MPS_RPC_FAILURE);
    control->server = 0;
}

void server_end(struct control *control)
{
    int status;

    if (control->server <= 0)
        return;
    kill(control->server, SIGKILL);
    while (waitpid(control->server, &status, 0) < 0 && errno == EINTR)
        continue;
    note_end(control, status);
}

void server_poll(struct control *control)
{
    int status;

    if (control->server > 0 && waitpid(control->server, &status, WNOHANG) == control->server)
        note_end(control, status);
}
