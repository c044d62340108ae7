/* SPDX-License-Identifier: Apache-2.0 */
/* plugin.c -- SPANK plugin that holds jobs with shards of a GPU to a quota.
 *
 * In slurmstepd, as root, once per step: it starts pyvgpu.slurm.step, which creates the job's quota
 * on this node or joins the one that another step has created, and prints the folders to mount.
 * Then, in each task before it changes to the job's user: a mount namespace in which the driver's
 * folder has the shim. The quota lasts until the last step's slurmstepd has ended: the program
 * passes on the read end of a pipe whose only other end is here.
 *
 * A step whose quota cannot be set fails when its tasks start, which shows the reason to the user.
 * A failure in init_post_opt would hide it, and drain the node if the step is a batch script.
 *
 * Compiled by `pyvgpu slurm-plugin` for the Slurm of the machine, with PYVGPU_PYTHON defined, and
 * PYVGPU_JOBS, the folder in which each job that has a quota on this node has a socket.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

SPANK_PLUGIN(pyvgpu, 1)

#define ARGUMENTS      32
#define LONGEST_VALUE  256
#define LONGEST_ANSWER 65536

extern char **environ;

enum state { UNTOUCHED, READY, FAILED };

static enum state state = UNTOUCHED;
static char answer[LONGEST_ANSWER]; /* of the program: lines, each with a word and its value */
static char failure[1024];
static char *options[2]; /* values of --vcore and --vmemory */

static int option_set(int which, const char *value, int remote)
{
    (void) remote;
    free(options[which]);
    options[which] = strdup(value ? value : "");
    return options[which] ? 0 : -1;
}

static struct spank_option plugin_options[] = {
    {"vcore", "N", "percent of the GPU's time, at most that of the shards (default)", 1, 0,
     option_set},
    {"vmemory", "SIZE", "GPU memory, such as 4GiB, at most that of the shards (default)", 1, 1,
     option_set},
};

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
    (void) count;
    (void) arguments;
    for (size_t i = 0; i < sizeof(plugin_options) / sizeof(*plugin_options); i++) {
        if (spank_context() == S_CTX_SLURMD || spank_context() == S_CTX_JOB_SCRIPT)
            return 0;
        if (spank_option_register(spank, &plugin_options[i]) != ESPANK_SUCCESS)
            return -1;
    }
    return 0;
}

static void plugin_fail(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(failure, sizeof(failure), format, arguments);
    va_end(arguments);
    state = FAILED;
}

/* The command line of the program; its texts are in *texts*. */
struct command {
    char *argv[ARGUMENTS];
    char texts[ARGUMENTS][LONGEST_VALUE];
    unsigned count;
};

static int command_add(struct command *command, const char *text)
{
    unsigned i = command->count;

    if (i + 1 >= ARGUMENTS || strlen(text) >= LONGEST_VALUE)
        return -1;
    strcpy(command->texts[i], text);
    command->argv[i] = command->texts[i];
    command->argv[++command->count] = NULL;
    return 0;
}

/* In one word: a user's value is never taken for an option. */
static int command_add_option(struct command *command, const char *name, const char *value)
{
    char option[LONGEST_VALUE];

    if (snprintf(option, sizeof(option), "--%s=%s", name, value) >= (int) sizeof(option))
        return -1;
    return command_add(command, option);
}

static int command_add_number(struct command *command, const char *name, uint32_t number)
{
    char text[16];

    snprintf(text, sizeof(text), "%u", number);
    return command_add_option(command, name, text);
}

/* The step's shards, and the GPU. Slurm itself sets the variables read here: a batch script and an
 * interactive step have the job's GPUs, and other variables as the user has set them. */
static int command_add_shards(struct command *command, spank_t spank, uint32_t step)
{
    int has_all = step == SLURM_BATCH_SCRIPT || step == SLURM_INTERACTIVE_STEP;
    char value[LONGEST_VALUE];
    spank_err_t found = spank_getenv(spank, "SLURM_SHARDS_ON_NODE", value, sizeof(value));

    if (found == ESPANK_ENV_NOEXIST)
        return 0;
    if (found != ESPANK_SUCCESS || command_add_option(command, "shards", value))
        return -1;
    if (spank_getenv(spank, has_all ? "SLURM_JOB_GPUS" : "SLURM_STEP_GPUS", value, sizeof(value)) !=
        ESPANK_SUCCESS)
        *value = '\0';
    return command_add_option(command, "gpus", value);
}

/* Add NAME=VALUE of plugstack.conf; no name may replace what Slurm says of the job. */
static int command_add_setting(struct command *command, const char *setting)
{
    static const char *const names[] = {"driver-libraries", "shards-per-gpu", "simulate"};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        size_t length = strlen(names[i]);

        if (strncmp(setting, names[i], length) == 0 && setting[length] == '=')
            return command_add_option(command, names[i], setting + length + 1);
    }
    return -1;
}

static int command_fill(struct command *command, spank_t spank, uint32_t step, int count,
                        char **arguments)
{
    static const char *const names[] = {"vcore", "vmemory"};
    uint32_t job;
    uid_t user;
    int result;

    if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_UID, &user) != ESPANK_SUCCESS)
        return -1;
    result = command_add(command, PYVGPU_PYTHON) || command_add(command, "-Im") ||
             command_add(command, "pyvgpu.slurm.step") || command_add_number(command, "job", job) ||
             command_add_number(command, "user", user) || command_add_shards(command, spank, step);
    for (int i = 0; i < 2 && !result; i++)
        result = options[i] && command_add_option(command, names[i], options[i]);
    for (int i = 0; i < count && !result; i++)
        result = command_add_setting(command, arguments[i]);
    return result ? -1 : 0;
}

/* Read *fd* to its end; -1 if that is too long. */
static int answer_read(int fd)
{
    size_t length = 0;
    ssize_t got = 1;

    while (got != 0 && length < sizeof(answer) - 1) {
        got = read(fd, answer + length, sizeof(answer) - 1 - length);
        if (got < 0 && errno != EINTR)
            return -1;
        length += got > 0 ? (size_t) got : 0;
    }
    answer[length] = '\0';
    return got == 0 ? 0 : -1;
}

/* Run the program with *alive* as its standard input. */
static int command_run(struct command *command, int alive)
{
    posix_spawn_file_actions_t actions;
    int output[2];
    int result;
    pid_t pid;

    if (pipe2(output, O_CLOEXEC) != 0)
        return -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, alive, 0);
    posix_spawn_file_actions_adddup2(&actions, output[1], 1);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    result = posix_spawn(&pid, command->argv[0], &actions, NULL, command->argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(output[1]);
    if (result == 0) {
        result = answer_read(output[0]);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    close(output[0]);
    return result ? -1 : 0;
}

/* What the answer's last line says. */
static void answer_apply(void)
{
    char *last = strrchr(answer, '\n');

    if (last)
        *last = '\0';
    last = strrchr(answer, '\n');
    last = last ? last + 1 : answer;
    if (strcmp(last, "ready") == 0)
        state = READY;
    else if (strncmp(last, "error ", strlen("error ")) == 0)
        plugin_fail("%s", last + strlen("error "));
    else if (strcmp(last, "untouched") != 0)
        plugin_fail("%s -Im pyvgpu.slurm.step did not run on this node", PYVGPU_PYTHON);
}

/* Whether the step has shards, or an option, or its job has a quota on this node. */
static int step_is_ours(spank_t spank)
{
    char path[sizeof(PYVGPU_JOBS) + 16];
    char value[LONGEST_VALUE];
    uint32_t job = 0;

    if (options[0] || options[1] ||
        spank_getenv(spank, "SLURM_SHARDS_ON_NODE", value, sizeof(value)) != ESPANK_ENV_NOEXIST)
        return 1;
    if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
        return 1;
    snprintf(path, sizeof(path), "%s/%u", PYVGPU_JOBS, job);
    return access(path, F_OK) == 0;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **arguments)
{
    static struct command command;
    uint32_t step = SLURM_EXTERN_CONT;
    int alive[2]; /* its write end stays open until this slurmstepd has ended */

    if (spank_context() != S_CTX_REMOTE)
        return 0;
    if (spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS && step == SLURM_EXTERN_CONT)
        return 0; /* it starts no tasks */
    if (!step_is_ours(spank))
        return 0;
    if (command_fill(&command, spank, step, count, arguments) != 0) {
        plugin_fail("an option is too long, or an argument in plugstack.conf is none of "
                    "shards-per-gpu=N, driver-libraries=DIR and simulate=MODEL");
        return 0;
    }
    if (pipe2(alive, O_CLOEXEC) != 0) {
        plugin_fail("pipe: %s", strerror(errno));
        return 0;
    }
    if (command_run(&command, alive[0]) != 0)
        plugin_fail("%s cannot be run: %s", PYVGPU_PYTHON, strerror(errno));
    else
        answer_apply();
    close(alive[0]);
    return 0;
}

enum { LAYER, CLOSED, FOLDER, LAYERS }; /* the upper ones first */

/* Mount *places*, separated by tabs, over the last of them, read-only. They are named by
 * descriptors, since they may have characters special in overlay options. */
static int mount_overlay(char *places)
{
    char lowerdir[LAYERS * 32] = "lowerdir=";
    const char *folder = NULL;
    char *rest = NULL;
    int opened[LAYERS];
    int count = 0;
    int result = -1;

    for (char *place = strtok_r(places, "\t", &rest); place && count < LAYERS;
         place = strtok_r(NULL, "\t", &rest)) {
        size_t length = strlen(lowerdir);

        opened[count] = open(place, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (opened[count] < 0)
            break;
        snprintf(lowerdir + length, sizeof(lowerdir) - length, "%s/proc/self/fd/%d",
                 count ? ":" : "", opened[count]);
        folder = place;
        count++;
    }
    if (count == LAYERS)
        result = mount("overlay", folder, "overlay", MS_RDONLY, lowerdir);
    while (count-- > 0)
        close(opened[count]);
    return result;
}

static int path_prepend(spank_t spank, const char *folder)
{
    static char path[LONGEST_ANSWER];
    size_t length = strlen(folder);
    spank_err_t found;

    strcpy(path, folder);
    found = spank_getenv(spank, "LD_LIBRARY_PATH", path + length + 1,
                         (int) (sizeof(path) - length - 1));
    if (found != ESPANK_SUCCESS && found != ESPANK_ENV_NOEXIST)
        return -1;
    if (found == ESPANK_SUCCESS && path[length + 1])
        path[length] = ':';
    return spank_setenv(spank, "LD_LIBRARY_PATH", path, 1) == ESPANK_SUCCESS ? 0 : -1;
}

/* Apply one line of the answer to the task. */
static int line_apply(spank_t spank, char *line)
{
    char *value = strchr(line, ' ');
    char *second;

    if (!value)
        return strcmp(line, "ready") == 0 ? 0 : -1;
    *value++ = '\0';
    if (strcmp(line, "path") == 0)
        return path_prepend(spank, value);
    if (strcmp(line, "mount") == 0)
        return mount_overlay(value);
    second = strchr(value, '\t');
    if (!second)
        return -1;
    *second++ = '\0';
    if (strcmp(line, "env") == 0)
        return spank_setenv(spank, value, second, 1) == ESPANK_SUCCESS ? 0 : -1;
    return -1;
}

static int task_enter(spank_t spank)
{
    char *rest = NULL;

    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0) {
        plugin_fail("no mount namespace: %s", strerror(errno));
        return -1;
    }
    for (char *line = strtok_r(answer, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        errno = 0;
        if (line_apply(spank, line) != 0) {
            plugin_fail("cannot apply %s: %s%s", line, errno ? strerror(errno) : "Slurm refused it",
                        errno == ENODEV ? "; the quota needs overlayfs (modprobe overlay)" : "");
            return -1;
        }
    }
    return 0;
}

int slurm_spank_task_init_privileged(spank_t spank, int count, char **arguments)
{
    int task = 0;

    (void) count;
    (void) arguments;
    if (state == UNTOUCHED)
        return 0;
    if (state == READY && task_enter(spank) == 0)
        return 0;
    if (spank_get_item(spank, S_TASK_ID, &task) != ESPANK_SUCCESS || task == 0)
        slurm_error("pyvgpu: %s", failure);
    return -1;
}
