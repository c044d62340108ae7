/* SPDX-License-Identifier: Apache-2.0 */
/* process.h -- libcuda's state of this process: devices, contexts, entry checks.
 *
 * Every entry of the API begins with ENTER(): NOT_INITIALIZED before cuInit and in the child of a
 * fork, DEINITIALIZED once the process is ending, or an injected fault.
 *
 * A call counts as in progress from there to its end, and waits at its beginning while another
 * process has locked this one (checkpoint.h).
 *
 * The functions that cuda/context.c and cuda/module.c must provide are declared at the end.
 */
#ifndef PYVGPU_SIMULATOR_PROCESS_H
#define PYVGPU_SIMULATOR_PROCESS_H

#include "cuda/api.h"

#include "checkpoint.h"
#include "fault.h"
#include "machine.h"
#include "mps.h"

struct process {
    struct machine *machine;
    uint32_t slot;
    uint64_t generation;
    int device_count;            /* that this process may see, by ordinal */
    int devices[CONFIG_DEVICES]; /* ordinal -> device of the machine */
    char mig_uuid[CONFIG_TEXT];  /* of the only device, if that is a compute instance */
    struct mps_server mps;       /* .connection is -1 outside MPS */
    _Atomic uint32_t *mps_error; /* in the slot */
    _Atomic uint64_t last_id;    /* contexts and streams are numbered from one counter */
};

/* A page that a fork wipes. Before the first cuInit process_page is a page of zeroes. */
struct process_page {
    uint32_t state; /* enum process_state */
};

enum process_state { PROCESS_NONE = 0, PROCESS_READY, PROCESS_ENDING };

extern struct process process;
extern struct process_page *process_page;

/* First part of cuInit: the machine is open, its faults read. 0, NO_DEVICE, NOT_INITIALIZED in
 * the child of a fork. Its configuration is then in process.machine->config. May be called often.
 */
CUresult process_open(void);

/* Last part of cuInit: claim a slot and be ready, with these devices of the machine by ordinal, as
 * a client of *mps* if that has a connection. */
CUresult process_start(const int *devices, int count, const struct mps_server *mps);

/* The error of a call of this name that may not go on. */
CUresult process_refusal(const char *name);

/* In static TLS, which also exists where a statically linked program has opened this library. */
#define PROCESS_STATIC_TLS __attribute__((tls_model("initial-exec")))
extern __thread unsigned int process_depth PROCESS_STATIC_TLS; /* calls, one within the other */
extern __thread struct machine_inside *process_inside PROCESS_STATIC_TLS; /* NULL: no call yet */

/* Ends with the function that it is declared in. */
struct process_call {
    bool is_counted;
};

#define PROCESS_CALL(call) __attribute__((cleanup(process_leave))) struct process_call call = {0}

static inline void process_leave(const struct process_call *call)
{
    if (call->is_counted && !--process_depth)
        checkpoint_leave(process_inside);
}

/* In the normal case: ready, no fault, the faults file checked lately, and not locked. */
static inline CUresult process_enter(const char *name, struct process_call *call)
{
    bool must_poll = process_page->state != PROCESS_READY || fault_is_due() ||
                     atomic_load_explicit(process.mps_error, memory_order_relaxed);
    CUresult refusal = __builtin_expect(must_poll, 0) ? process_refusal(name) : CUDA_SUCCESS;

    if (__builtin_expect(refusal != CUDA_SUCCESS, 0))
        return refusal;
    if (!process_depth++) {
        if (__builtin_expect(!process_inside, 0))
            process_inside = checkpoint_counter(process.machine->own);
        checkpoint_enter(process.machine->own, process_inside);
    }
    call->is_counted = true;
    return CUDA_SUCCESS;
}

/* Once in a function, not in a block within it. */
#define ENTER()                                                 \
    PROCESS_CALL(this_call);                                    \
    do {                                                        \
        CUresult entered = process_enter(__func__, &this_call); \
        if (__builtin_expect(entered != CUDA_SUCCESS, 0))       \
            return entered;                                     \
    } while (0)

#define REQUIRE(pointer)                     \
    do {                                     \
        if (!(pointer))                      \
            return CUDA_ERROR_INVALID_VALUE; \
    } while (0)

/* A wait for a context or stream on a driver whose law says that these ignore the lock: true while
 * the process is locked, and the end of the process while it is checkpointed.
 */
bool process_passes_lock(void);

/* SMs of a device that this process may use at once: fewer than there are under MPS. */
uint32_t process_units(uint32_t device);

/* A kernel has failed in a way that MPS shows to all clients of the server. */
void process_fail_clients(CUresult error);

/* Device of the machine for an ordinal, or -1; its configuration. */
int process_device(CUdevice ordinal);
const struct device_config *process_device_config(CUdevice ordinal);

/* --- contexts ----------------------------------------------------------------------------- */

struct stream; /* queue.h */

/* The part of a context that memory, streams and launches use. struct CUctx_st (cuda/context.c) has
 * this as its first member, named work.
 */
struct work_context {
    uint64_t id;            /* never given out again in this process */
    int ordinal;            /* in the API's numbering of devices */
    uint32_t device;        /* in the machine's */
    uint64_t charged;       /* for the context itself */
    _Atomic int error;      /* a CUresult that stays, such as ILLEGAL_ADDRESS */
    struct stream *legacy;  /* the default stream */
    struct stream *streams; /* all of the context's, linked; queue.c's */
};

/* Charge a context and create its default stream. OUT_OF_MEMORY if they do not fit. */
CUresult process_open_context(CUdevice ordinal, struct work_context *work);

/* Wait for its work, then free all its objects: memory, streams, events, pools' blocks. */
void process_close_context(struct work_context *work);

/* Wait until everything enqueued in the context is done: the sticky error, if any. */
CUresult process_synchronize_context(struct work_context *work);

/* The calling thread's context ready for work: INVALID_CONTEXT if there is none, the sticky error,
 * DEVICE_UNAVAILABLE when the device is lost.
 */
CUresult process_enter_context(struct work_context **work);

#define ENTER_CONTEXT(work)                                     \
    PROCESS_CALL(this_call);                                    \
    do {                                                        \
        CUresult entered = process_enter(__func__, &this_call); \
        if (__builtin_expect(entered == CUDA_SUCCESS, 1))       \
            entered = process_enter_context(work);              \
        if (__builtin_expect(entered != CUDA_SUCCESS, 0))       \
            return entered;                                     \
    } while (0)

/* --- defined in cuda/context.c and cuda/module.c -------------------------------------------- */

/* The thread's current context; NULL for none or for one that is gone. Cheap: every call needs it.
 */
struct work_context *current_context(void);

/* The context behind a handle; NULL if it is not one. */
struct work_context *context_of(CUcontext handle);

/* The handle of a context. */
CUcontext context_handle(struct work_context *work);

/* The part of a function that a launch uses. struct CUfunc_st (and CUkern_st) hold one each; name
 * and plan are set once, by launch_plan, when the image is loaded.
 */
enum builtin {
    BUILTIN_NONE,
    BUILTIN_SPIN,
    BUILTIN_WORK,
    BUILTIN_FILL,
    BUILTIN_ADD,
    BUILTIN_SAXPY,
    BUILTIN_COPY,
    BUILTIN_HOLD,
};

struct launch_function {
    const char *name;
    enum builtin builtin;
    uint64_t ns;          /* duration if it is not built in */
    uint32_t max_threads; /* of a block; 1024 unless the image says less */
    uint32_t static_shared_bytes;
    uint32_t dynamic_shared_bytes; /* most that a launch may request: 48 KiB less the static ones
                                      unless cuFuncSetAttribute raised it */
};

/* Fill in builtin, ns and the defaults for a kernel of this name (cuda/launch.c). */
void launch_plan(struct launch_function *function, const char *name);

/* The function behind a CUfunction that may really be a CUkernel; NULL if it is neither. */
struct launch_function *module_launch_function(CUfunction handle);

#endif
