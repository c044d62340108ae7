/* SPDX-License-Identifier: Apache-2.0 */
/* init.c -- cuInit, the driver's version, and the names of its results. */
#include "process.h"

#include <pthread.h>

#include "cuda/notice.h"
#include "mig.h"
#include "visible.h"

enum { DEFAULT_CUDA_VERSION = 13000 }; /* if there is no machine */

static const struct {
    int code;
    const char *name;
    const char *words;
} errors[] = {
#define ERROR(code, name, words) {code, #name, words},
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

/* A fork waits for a cuInit in another thread: the child must not inherit the lock held forever. */
static void watch_forks(void)
{
    pthread_atfork(lock_init, unlock_init, unlock_init);
}

/* A client of MPS sees only its server's devices. */
static int keep_served(const struct mps_server *server, int *devices, int count)
{
    int kept = 0;

    for (int i = 0; i < count; i++)
        if (server->devices & UINT64_C(1) << devices[i])
            devices[kept++] = devices[i];
    return kept;
}

/* The first call decides; later changes of the environment have no effect. */
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
    pthread_once(&fork_once, watch_forks);
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

CUresult cuGetErrorString(CUresult error, const char **words)
{
    long found = find_error(error);

    REQUIRE(words);
    *words = found < 0 ? NULL : errors[found].words;
    return found < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* NVIDIA's runtime recognises NVIDIA's driver by private tables; this is not that driver. */
CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    REQUIRE(table && id);
    *table = NULL;
    notice_private_table();
    return CUDA_ERROR_NOT_FOUND;
}
