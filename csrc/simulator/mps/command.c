/* SPDX-License-Identifier: Apache-2.0 */
/* command.c -- commands of the simulated MPS control daemon: those of MPS's documentation that ask
 * for its state, set defaults, terminate a client, or end the daemon. */
#include "control.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *state_of(const struct control *control)
{
    const struct machine_slot *slot = &control->machine->state->slots[control->server_slot];

    return atomic_load(&slot->mps_error) ? "FAULT" : "ACTIVE";
}

static bool names_server(const struct control *control, const char *text, FILE *answer)
{
    if (control->server > 0 && atoi(text) == (int) control->server)
        return true;
    fprintf(answer, "Server %s not found\n", text);
    return false;
}

static void list_clients(const struct control *control, FILE *answer)
{
    for (size_t i = 0; i < control->count; i++)
        if (control->connections[i].state == CONNECTION_CLIENT)
            fprintf(answer, "%d\n", (int) control->connections[i].pid);
}

static void list_processes(const struct control *control, FILE *answer)
{
    fprintf(answer, "PID     ID SERVER\n");
    for (size_t i = 0; i < control->count; i++)
        if (control->connections[i].state == CONNECTION_CLIENT)
            fprintf(answer, "%-7d %zu  %d\n", (int) control->connections[i].pid, i,
                    (int) control->server);
}

static void set_percent(struct control *control, const char *text, FILE *answer)
{
    char *end;
    double percent = strtod(text, &end);

    if (end == text || *end || !(percent > 0 && percent <= 100)) {
        fprintf(answer, "%s: must be above 0 and at most 100, such as 50\n", text);
        return;
    }
    control->percent = percent;
    fprintf(answer, "%.1f\n", percent);
}

static void set_memory(struct control *control, const char *text, FILE *answer)
{
    char unit;
    uint64_t number;

    if (sscanf(text, "%" SCNu64 "%c", &number, &unit) != 2 || !number ||
        (unit != 'G' && unit != 'M')) {
        fprintf(answer, "%s: must be a whole number with M or G, such as 512M\n", text);
        return;
    }
    control->memory_mib = unit == 'G' ? number << 10 : number;
}

static void terminate(struct control *control, int pid, FILE *answer)
{
    for (size_t i = 0; i < control->count; i++) {
        const struct connection *client = &control->connections[i];
        uint32_t none = 0;

        if (client->state != CONNECTION_CLIENT || (int) client->pid != pid ||
            client->slot == NO_SLOT)
            continue;
        atomic_compare_exchange_strong(&control->machine->state->slots[client->slot].mps_error,
                                       &none, MPS_CLIENT_TERMINATED);
        control_log(control->log, "Client %d terminated", pid);
        fprintf(answer, "CUDA_SUCCESS\n");
        return;
    }
    fprintf(answer, "Client %d not found\n", pid);
}

void command_answer(struct control *control, const char *words, FILE *answer)
{
    char name[64] = "", first[64] = "", second[64] = "";
    int count = sscanf(words, "%63s %63s %63s", name, first, second);

    server_poll(control);
    if (!strcmp(name, "get_server_list")) {
        if (control->server > 0)
            fprintf(answer, "%d\n", (int) control->server);
    } else if (!strcmp(name, "get_server_status") && count == 2) {
        if (names_server(control, first, answer))
            fprintf(answer, "%s\n", state_of(control));
    } else if (!strcmp(name, "get_client_list") && count == 2) {
        if (names_server(control, first, answer))
            list_clients(control, answer);
    } else if (!strcmp(name, "ps")) {
        list_processes(control, answer);
    } else if (!strcmp(name, "get_default_active_thread_percentage")) {
        fprintf(answer, "%.1f\n", control->percent);
    } else if (!strcmp(name, "set_default_active_thread_percentage") && count == 2) {
        set_percent(control, first, answer);
    } else if (!strcmp(name, "set_default_device_pinned_mem_limit") && count == 3) {
        set_memory(control, second, answer);
    } else if (!strcmp(name, "get_default_device_pinned_mem_limit") && count == 2) {
        fprintf(answer, "%" PRIu64 "M\n", control->memory_mib);
    } else if (!strcmp(name, "terminate_client") && count == 3) {
        if (names_server(control, first, answer))
            terminate(control, atoi(second), answer);
    } else if (!strcmp(name, "quit")) {
        control->is_ending = true;
    } else {
        fprintf(answer, "%s: not a command of this daemon, or its number of arguments is wrong\n",
                name);
    }
}
