/* SPDX-License-Identifier: Apache-2.0 */
/* layout.c -- the measured layouts of NVML's private table; see layout.h. */
#include "shim/nvml/layout.h"
#include "core/compiler.h"

/* Releases whose process entries are known, though their table size and load records are not. */
#define FIRST_RELEASE 535
#define LAST_RELEASE  580

struct table_layout layout_of_table(size_t bytes, int release)
{
    static const struct {
        size_t bytes;
        struct table_layout layout;
    } measured[] = {
        {1704, {0, 4}},  /* 470: it has no process lists */
        {1904, {24, 4}}, /* 525 */
        {1960, {32, 4}}, /* 535 */
        {2008, {32, 6}}, /* 550 */
        {2040, {32, 6}}, /* 555 */
    };

    for (size_t i = 0; i < ARRAY_SIZE(measured); i++)
        if (measured[i].bytes == bytes)
            return measured[i].layout;
    if (release >= FIRST_RELEASE && release <= LAST_RELEASE)
        return (struct table_layout) {.name_at = 32};
    return (struct table_layout) {0};
}
