/* SPDX-License-Identifier: Apache-2.0 */
/* test_shared_memory_crowd.c -- multi-threaded processes that share memory and are killed at random
 * times.
 *
 * The device is a table of the processes that have each object open, independent of the ledger:
 * memory lives there while any process has it. The test stops all processes now and then and
 * compares the live memory with the charges: never more than is charged, and never more than the
 * limit. At the end nothing is left.
 */
#include "check.h"
#include "core/ledger.h"
#include "core/shared_memory.h"
#include "scratch_region.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#define BYTES     (UINT64_C(1) << 20)
#define LIMIT     (12 * BYTES)
#define PROCESSES 8
#define THREADS   2
#define OBJECTS   24
#define ROUNDS    200

/* Objects on the device: a serial number in the high half; in the low half, four bits for each
 * process, how often it has the object open. */
static uint64_t *objects;

#define OPEN_BITS(process) (UINT64_C(0xf) << (4 * (process)))
#define OPEN_ONCE(process) (UINT64_C(1) << (4 * (process)))
#define ANY_OPEN           UINT64_C(0xffffffff)

static struct scratch scratch;
static struct region region;
static struct ledger ledger = {.region = &region, .generation = 1, .limit = {LIMIT}};
static unsigned process; /* number of this process */

static void join(void)
{
    struct region_reason reason;

    if (scratch_open(&scratch, &region, &reason) || slots_claim(&region, 0, &reason)) {
        fprintf(stderr, "%s\n", reason.text);
        _exit(2);
    }
}

static int device_create(unsigned i, uint64_t *object)
{
    uint64_t seen = __atomic_load_n(&objects[i], __ATOMIC_SEQ_CST);

    *object = (seen & ~ANY_OPEN) + (ANY_OPEN + 1) + OPEN_ONCE(process);
    return !(seen & ANY_OPEN) && __atomic_compare_exchange_n(&objects[i], &seen, *object, 0,
                                                             __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static int device_open(unsigned i, uint64_t object)
{
    uint64_t seen = __atomic_load_n(&objects[i], __ATOMIC_SEQ_CST);

    while ((seen & ANY_OPEN) && !((seen ^ object) & ~ANY_OPEN))
        if (__atomic_compare_exchange_n(&objects[i], &seen, seen + OPEN_ONCE(process), 0,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            return 1;
    return 0;
}

static void device_close(unsigned i)
{
    __atomic_sub_fetch(&objects[i], OPEN_ONCE(process), __ATOMIC_SEQ_CST);
}

static uint64_t key_of(unsigned i, uint64_t object)
{
    uint64_t name[2] = {i, object & ~ANY_OPEN};

    return shared_memory_key(name, sizeof(name));
}

static int charge(void)
{
    if (ledger_charge(&ledger, 0, BYTES) == 0)
        return 1;
    ledger_refund(&ledger, 0, shared_memory_collect(&region, 0, 0));
    return ledger_charge(&ledger, 0, BYTES) == 0;
}

/* Memory of a thread: its own, or another process's that it opened. */
struct holding {
    link_t export;
    link_t import;
    int opened;
    int charged;
};

static void create(unsigned i, struct holding *holding)
{
    uint64_t object;

    if (!charge())
        return;
    if (!device_create(i, &object)) {
        ledger_refund(&ledger, 0, BYTES);
        return;
    }
    holding->opened = 1;
    holding->charged = 1;
    holding->export = shared_memory_export(&region, key_of(i, object), 0, BYTES);
}

static void open_shared(unsigned i, struct holding *holding)
{
    uint64_t object = __atomic_load_n(&objects[i], __ATOMIC_SEQ_CST);
    int paid;

    holding->import = shared_memory_import(&region, key_of(i, object), &paid);
    if (!paid) { /* this process is charged itself, and the import need not be recorded */
        shared_memory_end_import(&region, holding->import);
        holding->import = 0;
        holding->charged = charge();
    }
    holding->opened = (paid || holding->charged) && device_open(i, object);
    if (holding->opened)
        return;
    shared_memory_end_import(&region, holding->import);
    ledger_refund(&ledger, 0, holding->charged ? BYTES : 0);
    *holding = (struct holding) {0};
}

static void let_go(unsigned i, struct holding *holding)
{
    device_close(i);
    shared_memory_end_import(&region, holding->import);
    if (holding->charged && shared_memory_end_export(&region, holding->export))
        ledger_refund(&ledger, 0, BYTES);
    *holding = (struct holding) {0};
}

static void *share_on_and_on(void *argument)
{
    unsigned seed = (unsigned) getpid() + *(unsigned *) argument;
    struct holding holdings[OBJECTS] = {{0}};

    for (;;) {
        unsigned i = (unsigned) rand_r(&seed) % OBJECTS;

        if (holdings[i].opened)
            let_go(i, &holdings[i]);
        else if (__atomic_load_n(&objects[i], __ATOMIC_SEQ_CST) & ANY_OPEN)
            open_shared(i, &holdings[i]);
        else
            create(i, &holdings[i]);
    }
    return NULL;
}

static pid_t start(unsigned which)
{
    pid_t pid = fork();

    if (pid == 0) {
        unsigned numbers[THREADS];
        pthread_t thread;

        process = which;
        join();
        for (unsigned i = 0; i < THREADS; i++) {
            numbers[i] = i;
            pthread_create(&thread, NULL, share_on_and_on, &numbers[i]);
        }
        pthread_join(thread, NULL);
    }
    return pid;
}

static void stop_all(const pid_t *pids)
{
    for (unsigned i = 0; i < PROCESSES; i++)
        kill(pids[i], SIGSTOP);
    for (unsigned i = 0; i < PROCESSES; i++) {
        int status = 0;

        waitpid(pids[i], &status, WUNTRACED);
        CHECK("it stops, and has not ended", WIFSTOPPED(status));
    }
}

static void kill_one(const pid_t *pids, unsigned which)
{
    kill(pids[which], SIGKILL);
    waitpid(pids[which], NULL, 0);
    for (unsigned i = 0; i < OBJECTS; i++) /* as the driver does */
        __atomic_and_fetch(&objects[i], ~OPEN_BITS(which), __ATOMIC_SEQ_CST);
}

static uint64_t alive(void)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; i < OBJECTS; i++)
        bytes += objects[i] & ANY_OPEN ? BYTES : 0;
    return bytes;
}

static uint64_t used(void)
{
    region.usage->scanned_ns = 0;
    return ledger_used(&ledger, 0);
}

/* With all processes stopped: live memory is charged, both before and after dead ones are reaped.
 */
static void check_charges(uint64_t *most)
{
    uint64_t living = alive();
    uint64_t charged = 0;

    for (unsigned slot = 0; slot < REGION_SLOTS; slot++)
        charged += region.usage->charged[0][slot] & LEDGER_BYTES;
    CHECK("what lives is charged", living <= charged);
    CHECK("and stays so", living <= used());
    CHECK("it is within the limit", living <= LIMIT);
    *most = living > *most ? living : *most;
}

int main(void)
{
    pid_t pids[PROCESSES];
    unsigned seed = 1;
    unsigned deaths = 0;
    uint64_t most = 0;

    objects = mmap(NULL, OBJECTS * sizeof(*objects), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    scratch = scratch_make(0);
    join();
    for (unsigned i = 0; i < PROCESSES; i++)
        pids[i] = start(i);
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned which = (unsigned) rand_r(&seed) % PROCESSES;

        usleep((unsigned) rand_r(&seed) % 3000);
        stop_all(pids);
        check_charges(&most);
        if (round % 2) {
            kill_one(pids, which);
            check_charges(&most);
            pids[which] = start(which);
            deaths++;
        }
        for (unsigned i = 0; i < PROCESSES; i++)
            kill(pids[i], SIGCONT);
    }
    stop_all(pids);
    for (unsigned i = 0; i < PROCESSES; i++) {
        kill_one(pids, i);
        check_charges(&most);
    }
    printf("%u deaths, at most %u of %u bytes alive\n", deaths, (unsigned) most, (unsigned) LIMIT);
    CHECK("much was shared", most > LIMIT / 2);
    CHECK_EQUAL("nothing is charged", used(), 0);
    CHECK_EQUAL("sums are short", region.usage->high_water, (uint64_t) region.slot + 1);
    for (unsigned place = 0; place < REGION_LINKS; place++)
        CHECK("no link is left", region.links[place].word == 0);
    slots_release(&region);
    scratch_remove(&scratch);
    return check_end();
}
