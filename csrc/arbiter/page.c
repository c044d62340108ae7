/* SPDX-License-Identifier: Apache-2.0 */
/* page.c -- creates and writes clock files; see page.h. */
#include "arbiter/page.h"
#include "core/cleanup.h"
#include "core/compiler.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

struct clock_file *page_fill(int fd, const uint8_t id[16])
{
    struct clock_file *page;
    struct region_header header = {CLOCK_MAGIC, CLOCK_LAYOUT, CLOCK_PAGE, {0}};
    int failure = ftruncate(fd, 0) ? errno : posix_fallocate(fd, 0, sizeof(*page));

    if (failure) {
        errno = failure;
        return NULL;
    }
    page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return NULL;
    for (unsigned i = 0; i < sizeof(header.region_id); i++)
        header.region_id[i] = id[i];
    page->newest = ARRAY_SIZE(page->samples) - 1;
    page->header = header;
    return page;
}

struct clock_file *page_make(int folder, const char *name, const uint8_t id[16])
{
    char hidden[80];
    struct clock_file *page;
    cleanup_close int fd = -1;

    snprintf(hidden, sizeof(hidden), ".%s", name);
    unlinkat(folder, hidden, 0);
    fd = openat(folder, hidden, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return NULL;
    page = page_fill(fd, id);
    if (page && renameat(folder, hidden, folder, name) == 0)
        return page;
    if (page)
        page_remove(page, folder, hidden);
    else
        unlinkat(folder, hidden, 0);
    return NULL;
}

static void add_sample(struct clock_file *page, struct clock_sample sample)
{
    uint32_t next = (page->newest + 1) % ARRAY_SIZE(page->samples);

    page->samples[next] = sample;
    page->newest = next;
}

void page_write_above(struct clock_file *page, uint32_t above)
{
    __atomic_store_n(&page->above, above, __ATOMIC_RELAXED);
}

void page_write(struct clock_file *page, const struct lending *lending,
                const struct lending_container *tenant)
{
    uint64_t sequence = page->sequence;

    __atomic_store_n(&page->sequence, sequence + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    page->beat_ns = lending->now_ns;
    page->share_ns = tenant ? tenant->share_ns : 0;
    page->busy = lending->busy;
    page->lent = tenant ? tenant->lent : lending->lent;
    page->tenants = lending->tenants - lending->outside;
    page->outside = lending->outside;
    page->spared = tenant && lending->busy == tenant->busy;
    if (tenant) {
        const struct clock_alone *last = &tenant->moments[tenant->moment];

        page->alone = last->slot;
        page->alone_from_ns = last->from_ns;
        page->alone_until_ns = last->until_ns;
        memcpy(page->moments, tenant->moments, sizeof(page->moments));
        memcpy(page->others, tenant->others.beside, sizeof(page->others));
        page->others_until_ns = lending->others ? lending->others->known_ns : 0;
    }
    for (unsigned i = 0; tenant && i < tenant->point_count; i++)
        add_sample(page, tenant->points[i]);
    __atomic_store_n(&page->sequence, sequence + 2, __ATOMIC_RELEASE);
}

void page_remove(struct clock_file *page, int folder, const char *name)
{
    unlinkat(folder, name, 0);
    munmap(page, sizeof(*page));
}
