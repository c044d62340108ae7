/* SPDX-License-Identifier: Apache-2.0 */
/* mps.c -- the client's side of the simulated MPS; see mps.h. */
#include "mps.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FOLDER  "CUDA_MPS_PIPE_DIRECTORY"
#define PERCENT "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
#define MEMORY  "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"

enum { STEP_SMS = 2, LEAST_SMS_OF_HOPPER = 8 };

bool mps_address(const struct machine *machine, struct sockaddr_un *address)
{
    const char *named = getenv(FOLDER);
    int length;

    *address = (struct sockaddr_un) {.sun_family = AF_UNIX};
    if (named && *named)
        length = snprintf(address->sun_path, sizeof(address->sun_path), "%s/%s", named, MPS_SOCKET);
    else
        length = snprintf(address->sun_path, sizeof(address->sun_path), "%s/mps/%s",
                          machine->folder, MPS_SOCKET);
    return length < (int) sizeof(address->sun_path);
}

static bool read_line(int connection, char *line)
{
    size_t count = 0;

    while (count < MPS_LINE - 1) {
        ssize_t got = read(connection, line + count, 1);

        if (got < 0 && errno == EINTR)
            continue;
        if (got != 1)
            return false;
        if (line[count++] == '\n') {
            line[count - 1] = '\0';
            return true;
        }
    }
    return false;
}

static int greet(int connection, struct mps_server *server)
{
    char line[MPS_LINE];
    int code;

    if (send(connection, "client\n", 7, MSG_NOSIGNAL) != 7 || !read_line(connection, line))
        return MPS_CONNECTION_FAILED;
    if (sscanf(line, "error %d", &code) == 1)
        return code;
    if (sscanf(line, "server %" SCNu32 " %" SCNx64 " %lf %" SCNu64, &server->slot, &server->devices,
               &server->percent, &server->memory_mib) != 4 ||
        server->slot >= MACHINE_SLOTS)
        return MPS_CONNECTION_FAILED;
    return 0;
}

int mps_connect(const struct machine *machine, struct mps_server *server)
{
    struct sockaddr_un address;
    int result;

    *server = (struct mps_server) {.connection = -1};
    if (!mps_address(machine, &address) || (access(address.sun_path, F_OK) && errno == ENOENT))
        return 0;
    server->connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server->connection < 0)
        return MPS_CONNECTION_FAILED;
    if (connect(server->connection, (struct sockaddr *) &address, sizeof(address)))
        result = MPS_CONNECTION_FAILED;
    else
        result = greet(server->connection, server);
    if (result) {
        close(server->connection);
        server->connection = -1;
    }
    return result;
}

void mps_join(struct machine *machine, const struct mps_server *server, uint32_t slot)
{
    char line[MPS_LINE];
    int length = snprintf(line, sizeof(line), "slot %u\n", (unsigned int) slot);

    atomic_store(&machine->state->slots[slot].mps_server, server->slot + 1);
    if (send(server->connection, line, (size_t) length, MSG_NOSIGNAL) != length)
        atomic_store(&machine->state->slots[slot].mps_error, MPS_RPC_FAILURE);
}

uint32_t mps_units(const struct device_config *device, const struct mps_server *server)
{
    const char *text = getenv(PERCENT);
    double percent = server->percent;
    uint32_t least = device->capability_major >= 9 ? LEAST_SMS_OF_HOPPER : STEP_SMS;
    uint32_t units;

    if (text) {
        char *end;
        double given = strtod(text, &end);
        if (end != text && !*end && given > 0 && given < percent)
            percent = given;
    }
    if (percent >= 100)
        return 0;
    units = (uint32_t) (percent * device->sm_count / 100) / STEP_SMS * STEP_SMS;
    if (units < least)
        units = least;
    return units < device->sm_count ? units : 0;
}

/* The number of MiB in "1G" or "512M"; 0 if it is neither. */
static uint64_t parse_mib(const char *text)
{
    char *end;
    uint64_t number = strtoull(text, &end, 10);

    if (end == text || (*end != 'G' && *end != 'M') || (end[1] && end[1] != ','))
        return 0;
    return *end == 'G' ? number << 10 : number;
}

uint64_t mps_memory(const struct device_config *device, unsigned int index,
                    const struct mps_server *server)
{
    uint64_t mib = server->memory_mib;
    const char *text = getenv(MEMORY);
    char ordinal[16];

    snprintf(ordinal, sizeof(ordinal), "%u", index);
    while (text && *text) {
        const char *equals = strchr(text, '=');
        const char *comma = strchr(text, ',');
        size_t length = equals ? (size_t) (equals - text) : 0;

        if (equals && ((length == strlen(ordinal) && !strncmp(text, ordinal, length)) ||
                       (length == strlen(device->uuid) && !strncmp(text, device->uuid, length)))) {
            uint64_t given = parse_mib(equals + 1);
            if (given && (!mib || given < mib))
                mib = given;
        }
        text = comma ? comma + 1 : NULL;
    }
    return mib << 20;
}

void mps_fail(struct machine *machine, uint32_t server, int code)
{
    for (uint32_t slot = 0; slot < machine->state->slot_limit; slot++) {
        struct machine_slot *record = &machine->state->slots[slot];
        uint32_t none = 0;

        if (machine_slot_is_live(machine, slot) &&
            (slot == server || atomic_load(&record->mps_server) == server + 1))
            atomic_compare_exchange_strong(&record->mps_error, &none, (uint32_t) code);
    }
}

bool mps_is_gone(int connection)
{
    struct pollfd polled = {.fd = connection, .events = POLLIN};

    return poll(&polled, 1, 0) == 1 && polled.revents & (POLLHUP | POLLERR | POLLNVAL);
}
