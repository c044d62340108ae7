/* SPDX-License-Identifier: Apache-2.0 */
/* init.c -- cuInit, the driver's version, and the names of its results. */
#include "process.h"

#include <pthread.h>

#include "cuda/notice.h"
#include "mig.h"
#include "visible.h"

enum { DEFAULT_CUDA_VERSION = 13000 }; /* if there is no simulated machine */

static const struct {
    int code;
    const char *name;
    const char *description;
} errors[] = {
#define ERROR(code, name, description) {code, #name, description},
#include "errors.inc"
#undef ERROR
};

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static bool started;
static CUresult start_result;

static void lock_init(void)
{
    pthread_mutex_lock(&init_lock);
}

static void unlock_init(void)
{
    pthread_mutex_unlock(&init_lock);
}

/* Let fork() wait for a cuInit in another thread: otherwise the child would inherit a lock that no
 * thread releases. */
static void register_fork_handlers(void)
{
    pthread_atfork(lock_init, unlock_init, unlock_init);
}

/* Remove the devices that the MPS server does not serve; returns how many are left. */
static int keep_served(const struct mps_server *server, int *devices, int count)
{
    int kept = 0;

    for (int i = 0; i < count; i++)
        if (server->devices & UINT64_C(1) << devices[i])
            devices[kept++] = devices[i];
    return kept;
}

/* Start the process's driver on the devices that the environment selects at the first call; later
 * changes of the environment have no effect. */
static CUresult start(void)
{
    int devices[CONFIG_DEVICES];
    struct mps_server server;
    int result = mps_connect(process.machine, &server);
    int count;

    if (result)
        return (CUresult) result;
    count = visible_now(process.machine, devices);
    if (server.connection >= 0)
        count = keep_served(&server, devices, count);
    return count ? process_start(devices, count, &server) : CUDA_ERROR_NO_DEVICE;
}

CUresult cuInit(unsigned int flags)
{
    CUresult result;

    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    result = process_open();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_once(&fork_once, register_fork_handlers);
    lock_init();
    if (!started) {
        start_result = start();
        started = true;
    }
    result = start_result;
    unlock_init();
    return result;
}

CUresult cuDriverGetVersion(int *version)
{
    struct machine *machine;

    REQUIRE(version);
    *version = machine_open(&machine) == MACHINE_READY ? (int) machine->config.cuda_version
                                                       : DEFAULT_CUDA_VERSION;
    return CUDA_SUCCESS;
}

static long find_error(CUresult code)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
        if (errors[i].code == (int) code)
            return (long) i;
    return -1;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    long found = find_error(error);

    REQUIRE(name);
    *name = found < 0 ? NULL : errors[found].name;
    return found < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **description)
{
    long found = find_error(error);

    REQUIRE(description);
    *description = found < 0 ? NULL : errors[found].description;
    return found < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* NVIDIA's runtime identifies NVIDIA's driver by private tables; the simulated driver has none. */
CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    REQUIRE(table && id);
    *table = NULL;
    notice_private_table();
    return CUDA_ERROR_NOT_FOUND;
}
