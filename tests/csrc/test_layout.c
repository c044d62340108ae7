/* SPDX-License-Identifier: Apache-2.0 */
/* test_layout.c -- recognition of NVML's private tables and their entries. */
#include "check.h"
#include "shim/nvml/layout.h"

static void expect(size_t bytes, int release, size_t name_at, size_t load_engines)
{
    struct table_layout layout = layout_of_table(bytes, release);

    CHECK_EQUAL("where the name of an entry is", layout.name_at, name_at);
    CHECK_EQUAL("how many engines a record has", layout.load_engines, load_engines);
}

static void measured_tables_are_recognised_by_size(void)
{
    expect(1704, 470, 0, 4);
    expect(1904, 525, 24, 4);
    expect(1960, 535, 32, 4);
    expect(2008, 550, 32, 6);
    expect(2040, 555, 32, 6);
    expect(2008, 999, 32, 6);
}

static void entries_of_releases_up_to_580_are_known(void)
{
    expect(2100, 560, 32, 0);
    expect(2200, 580, 32, 0);
}

static void unmeasured_tables_are_unknown(void)
{
    expect(2200, 581, 0, 0);
    expect(2200, 595, 0, 0);
    expect(1900, 530, 0, 0);
    expect(0, 0, 0, 0);
}

int main(void)
{
    measured_tables_are_recognised_by_size();
    entries_of_releases_up_to_580_are_known();
    unmeasured_tables_are_unknown();
    return check_end();
}
