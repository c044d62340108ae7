/* SPDX-License-Identifier: Apache-2.0 */
/* test_visible.c -- CUDA_VISIBLE_DEVICES against a quota of three devices, row by row. */
#include "check.h"
#include "core/visible.h"

#define A "GPU-aa000000-0000-0000-0000-000000000001"
#define B "GPU-ab000000-0000-0000-0000-000000000002"
#define M "MIG-ab000000-0000-0000-0000-000000000002"
#define C "GPU-c0ffee00-1234-5678-9abc-def012345678"

static const struct row {
    const char *asked;
    const char *expected;
    const char *why;
} rows[] = {
    {NULL, A "," B "," C, "unset: the whole quota"},
    {"", "", "empty: no device"},
    {"0", A, "an ordinal counts in the quota's order"},
    {"2,0", C "," A, "the application's order holds"},
    {"1,7,0", B, "the list ends at the first ordinal that is not there"},
    {"-1", "", "a negative ordinal ends the list"},
    {"0,-1,1", A, "anywhere in it"},
    {"NoDevFiles", "", "words are not ordinals"},
    {"1x,0", B "," A, "digits at the beginning count"},
    {"0,1,0", "", "a repeated entry means no device"},
    {C, C, "a whole UUID"},
    {"GPU-c0", C, "a prefix that fits one device"},
    {"GPU-a", "", "a prefix that fits two is not valid"},
    {"GPU-C0FFEE", C, "letters of either case"},
    {"GPU-c0,GPU-aa", C "," A, "two prefixes"},
    {"GPU-c0,0", C, "an ordinal after UUIDs ends the list"},
    {"0," C, A, "a UUID after ordinals ends the list"},
    {"GPU-", "", "the bare prefix names no device"},
    {"GPU-dead", "", "a stranger's UUID"},
    {"GPU-c0,GPU-c0ff", "", "the same device twice under two prefixes"},
    {"MIG-c0", "", "a device is no instance"},
    {",0", "", "an empty entry ends the list"},
};

static void uuid_from_text(const char *text, uint8_t uuid[16])
{
    int filled = 0;

    for (text += 4; *text && filled < 16; text++) {
        unsigned byte;

        if (*text == '-')
            continue;
        sscanf(text, "%2x", &byte);
        uuid[filled++] = (uint8_t) byte;
        text++;
    }
}

int main(void)
{
    struct quota_limits limits = {.device_count = 3};
    char text[VISIBLE_TEXT];

    uuid_from_text(A, limits.devices[0].uuid);
    uuid_from_text(B, limits.devices[1].uuid);
    uuid_from_text(C, limits.devices[2].uuid);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        visible_resolve(rows[i].asked, &limits, text);
        CHECK(rows[i].why, strcmp(text, rows[i].expected) == 0);
    }
    limits.flags = 2U << QUOTA_MIG_SHIFT;
    visible_resolve(NULL, &limits, text);
    CHECK("an instance has its own prefix", strcmp(text, A "," M "," C) == 0);
    visible_resolve("MIG-ab", &limits, text);
    CHECK("by which it is found", strcmp(text, M) == 0);
    visible_resolve("GPU-ab", &limits, text);
    CHECK("and by no other", strcmp(text, "") == 0);
    limits.flags = 0;
    limits.device_count = REGION_DEVICES;
    for (unsigned i = 0; i < REGION_DEVICES; i++)
        limits.devices[i].uuid[0] = (uint8_t) i;
    visible_resolve(NULL, &limits, text);
    CHECK_EQUAL("sixteen devices fit", strlen(text), REGION_DEVICES * VISIBLE_UUID_TEXT - 1);
    return check_end();
}
