/* SPDX-License-Identifier: Apache-2.0 */
/* test_credit.c -- what was bought is given to launches once, by however many threads. */
#include "check.h"
#include "credit.h"

#include <pthread.h>

#define MS INT64_C(1000000)

enum { THREADS = 40, PURCHASES = 200 };

static struct credit shared;
static int over; /* nothing more is bought */

static void test_what_is_paid_is_no_longer_there(void)
{
    static struct credit credit;

    CHECK("there is nothing yet", !credit_pay(&credit, 1));
    credit_buy(&credit, 2 * MS);
    CHECK("there is", credit_pay(&credit, 500));
    CHECK_EQUAL("less by that", credit_left(&credit), 2 * MS - 500);
    CHECK("not more than there is", !credit_pay(&credit, 2 * MS));
    CHECK("nor what is in pockets and in the middle", !credit_pay(&credit, 2 * MS - 500));
    CHECK_EQUAL("nothing was taken for that", credit_left(&credit), 2 * MS - 500);
    CHECK_EQUAL("gathered", credit_gather(&credit), 2 * MS - 500);
    CHECK("it is all in the middle", credit_pay(&credit, 2 * MS - 500));
    CHECK_EQUAL("and then gone", credit_left(&credit), 0);
    credit_give_back(&credit, 700);
    CHECK_EQUAL("or given back", credit_left(&credit), 700);
    CHECK_EQUAL("or taken away", credit_take(&credit), 700);
    CHECK_EQUAL("so that there is nothing", credit_left(&credit), 0);
}

static void test_a_pocket_has_a_small_part(void)
{
    static struct credit credit;

    credit_buy(&credit, 2 * MS);
    for (int i = 0; i < 4; i++)
        credit_pay(&credit, 500);
    CHECK("it is there", credit.pockets[credit_pocket].ns > 20000);
    CHECK("and small", credit.pockets[credit_pocket].ns < 2 * MS / 32);
    credit_take(&credit);
    credit_buy(&credit, 2 * MS);
    credit_pay(&credit, 300000);
    CHECK_EQUAL("none for what is longer", credit.pockets[credit_pocket].ns, 0);
    credit_buy(&credit, 0);
    for (int i = 0; i < 4; i++)
        credit_pay(&credit, 500);
    CHECK("nor less because little more was bought", credit.pockets[credit_pocket].ns > 20000);
}

static void *pay(void *argument)
{
    uint64_t *paid = argument;

    for (;;) {
        while (credit_pay(&shared, 700))
            *paid += 700;
        if (__atomic_load_n(&over, __ATOMIC_ACQUIRE))
            return NULL;
    }
}

/* One gathers and takes away meanwhile, as whoever buys and whoever is told to stop. */
static void test_no_thread_pays_with_what_another_one_had(void)
{
    static uint64_t paid[THREADS];
    pthread_t threads[THREADS];
    uint64_t sum = 0, taken = 0;

    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, pay, &paid[i]);
    for (int i = 0; i < PURCHASES; i++) {
        credit_buy(&shared, 2 * MS);
        while (credit_gather(&shared) > MS)
            ;
        if (i % 10 == 0)
            taken += (uint64_t) credit_take(&shared);
    }
    __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        sum += paid[i];
    }
    CHECK("they paid", sum > PURCHASES * (uint64_t) MS / 2);
    CHECK_EQUAL("with what was bought", sum + taken + (uint64_t) credit_left(&shared),
                PURCHASES * 2 * (uint64_t) MS);
}

int main(void)
{
    test_what_is_paid_is_no_longer_there();
    test_a_pocket_has_a_small_part();
    test_no_thread_pays_with_what_another_one_had();
    return check_end();
}
