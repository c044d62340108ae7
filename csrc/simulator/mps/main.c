/* SPDX-License-Identifier: Apache-2.0 */
/* main.c -- the simulated MPS control daemon, and the program that sends it commands.
 *
 * It has the name, options, commands and files of the program that it stands for, and serves only
 * simulated machines. One process starts servers and answers all connections; a client's connection
 * lasts as long as the client. A server serves one user at a time, unless it is for all.
 */
#include "control.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PID_FILE "nvidia-cuda-mps-control.pid"

enum { POLL_MS = 20 };

static const char usage[] =
    "usage: nvidia-cuda-mps-control [-d | -f] [-multiuser-server]\n"
    "The control daemon of pyvgpu's simulated MPS: -d in the background, -f in the foreground.\n"
    "Without both: reads commands for the running daemon from standard input.\n";

void control_log(FILE *log, const char *format, ...)
{
    struct timespec now;
    struct tm parts;
    char text[32];
    va_list arguments;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &parts);
    fprintf(log, "[%s.%03ld] ", text, now.tv_nsec / 1000000);
    va_start(arguments, format);
    vfprintf(log, format, arguments);
    va_end(arguments);
    fputc('\n', log);
    fflush(log);
}

size_t control_clients(const struct control *control)
{
    size_t count = 0;

    for (size_t i = 0; i < control->count; i++)
        count += control->connections[i].state == CONNECTION_CLIENT;
    return count;
}

static void say_error(int fd, int code)
{
    dprintf(fd, "error %d\n", code);
}

/* A client that has arrived, or waited: accept, refuse, or let it wait. False: close it. */
static bool admit(struct control *control, struct connection *client)
{
    struct machine_slot *slots = control->machine->state->slots;

    server_poll(control);
    if (control->server > 0 && !control->is_multiuser && client->uid != control->server_uid) {
        client->state = CONNECTION_WAITING;
        if (control_clients(control))
            return true;
        server_end(control);
    }
    if (control->server > 0 && atomic_load(&slots[control->server_slot].mps_error)) {
        if (control_clients(control)) {
            say_error(client->fd, MPS_SERVER_NOT_READY);
            return false;
        }
        atomic_store(&slots[control->server_slot].mps_error, 0);
    }
    if (client->uid != geteuid() && geteuid() != 0) {
        control_log(control->log, "User did not send valid credentials");
        say_error(client->fd, MPS_CONNECTION_FAILED);
        return false;
    }
    if (control_clients(control) >= control->machine->config.law.mps_clients) {
        say_error(client->fd, MPS_MAX_CLIENTS_REACHED);
        return false;
    }
    if (control->server <= 0 &&
        !server_start(control, control->is_multiuser ? geteuid() : client->uid)) {
        say_error(client->fd, MPS_CONNECTION_FAILED);
        return false;
    }
    client->state = CONNECTION_CLIENT;
    control_log(control->server_log, "Client %d connected", (int) client->pid);
    return dprintf(client->fd, "server %" PRIu32 " %" PRIx64 " %.2f %" PRIu64 "\n",
                   control->server_slot, control->server_devices, control->server_percent,
                   control->server_memory_mib) > 0;
}

static void answer_command(struct control *control, int fd, const char *words)
{
    char *text = NULL;
    size_t size = 0;
    FILE *answer = open_memstream(&text, &size);

    if (!answer)
        return;
    command_answer(control, words, answer);
    fclose(answer);
    if (send(fd, text, size, MSG_NOSIGNAL) != (ssize_t) size)
        control_log(control->log, "An answer could not be sent");
    free(text);
}

/* False: the connection is over. */
static bool take_line(struct control *control, struct connection *connection)
{
    if (connection->state == CONNECTION_CLIENT)
        return sscanf(connection->line, "slot %" SCNu32, &connection->slot) == 1 &&
               connection->slot < MACHINE_SLOTS;
    if (!strcmp(connection->line, "client"))
        return admit(control, connection);
    if (!strncmp(connection->line, "command ", 8))
        answer_command(control, connection->fd, connection->line + 8);
    return false;
}

static bool receive(struct control *control, struct connection *connection)
{
    ssize_t got = recv(connection->fd, connection->line + connection->filled,
                       MPS_LINE - 1 - connection->filled, MSG_DONTWAIT);
    char *end;

    if (got < 0)
        return errno == EAGAIN || errno == EINTR;
    if (got == 0)
        return false;
    connection->filled += (size_t) got;
    connection->line[connection->filled] = '\0';
    while ((end = strchr(connection->line, '\n'))) {
        *end = '\0';
        if (!take_line(control, connection))
            return false;
        connection->filled -= (size_t) (end + 1 - connection->line);
        memmove(connection->line, end + 1, connection->filled + 1);
    }
    return connection->filled < MPS_LINE - 1;
}

static void drop(struct control *control, size_t index)
{
    if (control->connections[index].state == CONNECTION_CLIENT)
        control_log(control->server_log, "Client %d disconnected",
                    (int) control->connections[index].pid);
    close(control->connections[index].fd);
    control->connections[index] = control->connections[--control->count];
}

static void accept_one(struct control *control, int listener)
{
    struct ucred credentials;
    socklen_t size = sizeof(credentials);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0)
        return;
    if (control->count == CONTROL_CONNECTIONS ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size)) {
        close(fd);
        return;
    }
    control->connections[control->count++] = (struct connection) {
        .fd = fd, .pid = credentials.pid, .uid = credentials.uid, .slot = NO_SLOT};
}

static void serve(struct control *control, int listener)
{
    struct pollfd polled[CONTROL_CONNECTIONS + 1];

    while (!control->is_ending) {
        size_t count = control->count;

        polled[0] = (struct pollfd) {.fd = listener, .events = POLLIN};
        for (size_t i = 0; i < count; i++)
            polled[i + 1] = (struct pollfd) {.fd = control->connections[i].fd, .events = POLLIN};
        poll(polled, count + 1, POLL_MS);
        server_poll(control);
        for (size_t i = count; i-- > 0;)
            if (polled[i + 1].revents && !receive(control, &control->connections[i]))
                drop(control, i);
        for (size_t i = control->count; i-- > 0;)
            if (control->connections[i].state == CONNECTION_WAITING &&
                !admit(control, &control->connections[i]))
                drop(control, i);
        if (polled[0].revents)
            accept_one(control, listener);
    }
}

static FILE *open_log(const char *folder, const char *name)
{
    char path[MACHINE_PATH];

    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int) sizeof(path))
        return NULL;
    return fopen(path, "ae");
}

/* The descriptor of the pid file, locked for as long as the daemon lives; -1: another has it. */
static int lock_pid_file(const char *folder)
{
    char path[MACHINE_PATH];
    int fd;

    if (snprintf(path, sizeof(path), "%s/" PID_FILE, folder) >= (int) sizeof(path))
        return -1;
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB)) {
        close(fd);
        return -1;
    }
    return fd;
}

static int listen_at(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    unlink(address->sun_path);
    if (fd < 0 || bind(fd, (const struct sockaddr *) address, sizeof(*address)) ||
        chmod(address->sun_path, 0666) || listen(fd, 64)) {
        fprintf(stderr, "nvidia-cuda-mps-control: %s: %s\n", address->sun_path, strerror(errno));
        return -1;
    }
    return fd;
}

static void note_pid(int fd)
{
    if (ftruncate(fd, 0) || dprintf(fd, "%d\n", (int) getpid()) < 0)
        fprintf(stderr, "nvidia-cuda-mps-control: the pid file cannot be written\n");
}

static int run_daemon(bool in_background, bool is_multiuser)
{
    static struct control control = {.percent = 100};
    struct sockaddr_un address;
    const char *logs = getenv("CUDA_MPS_LOG_DIRECTORY");
    char folder[sizeof(address.sun_path)];
    int lock, listener;

    if (machine_open(&control.machine) != MACHINE_READY)
        return 1;
    if (!mps_address(control.machine, &address)) {
        fprintf(stderr, "nvidia-cuda-mps-control: the path of the pipe directory is too long\n");
        return 1;
    }
    snprintf(folder, sizeof(folder), "%s", address.sun_path);
    *strrchr(folder, '/') = '\0';
    mkdir(folder, 0755);
    lock = lock_pid_file(folder);
    if (lock < 0) {
        fprintf(stderr, "An instance of this daemon is already running, or %s is not writable\n",
                folder);
        return 1;
    }
    control.is_multiuser = is_multiuser;
    control.log = open_log(logs && *logs ? logs : folder, "control.log");
    control.server_log = open_log(logs && *logs ? logs : folder, "server.log");
    listener = listen_at(&address);
    if (listener < 0 || !control.log || !control.server_log)
        return 1;
    if (in_background && daemon(0, 0))
        return 1;
    note_pid(lock);
    signal(SIGPIPE, SIG_IGN);
    control_log(control.log, "Simulated MPS control daemon started");
    serve(&control, listener);
    unlink(address.sun_path);
    server_end(&control);
    control_log(control.log, "Exit");
    return 0;
}

static int send_command(const struct sockaddr_un *address, char *words)
{
    char text[4096];
    ssize_t got;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, (const struct sockaddr *) address, sizeof(*address))) {
        fprintf(stderr, "Cannot find MPS control daemon process\n");
        return 1;
    }
    if (dprintf(fd, "command %s\n", words) < 0)
        return 1;
    while ((got = read(fd, text, sizeof(text))) > 0)
        fwrite(text, 1, (size_t) got, stdout);
    close(fd);
    return 0;
}

static int send_commands(void)
{
    struct sockaddr_un address;
    struct machine *machine;
    char line[MPS_LINE - 16];
    int result = 0;

    if (machine_open(&machine) != MACHINE_READY || !mps_address(machine, &address))
        return 1;
    while (!result && fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = '\0';
        if (*line)
            result = send_command(&address, line);
    }
    return result;
}

int main(int count, char **arguments)
{
    bool is_daemon = false, in_background = false, is_multiuser = false;

    if (count == 2 && !strcmp(arguments[0], "nvidia-cuda-mps-server"))
        return server_main(atoi(arguments[1]));
    for (int i = 1; i < count; i++) {
        if (!strcmp(arguments[i], "-d") || !strcmp(arguments[i], "-f")) {
            is_daemon = true;
            in_background = arguments[i][1] == 'd';
        } else if (!strcmp(arguments[i], "-multiuser-server")) {
            is_multiuser = true;
        } else {
            fputs(usage, stderr);
            return 1;
        }
    }
    return is_daemon ? run_daemon(in_background, is_multiuser) : send_commands();
}
