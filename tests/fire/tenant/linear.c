/* SPDX-License-Identifier: Apache-2.0 */
/* linear.c -- linear, pitched and managed memory; other APIs' memory. */
#include <sys/mman.h>
#include <unistd.h>

#include "families.h"

static bool take_managed(struct hand *hand, struct item *item)
{
    item->size = hand_size(hand);
    if (!GOT(cuMemAllocManaged(&item->address, item->size, CU_MEM_ATTACH_GLOBAL)))
        return false;
    hand_mark(hand, item);
    if (hand_chance(hand, 2))
        GOT(cuMemPrefetchAsync(item->address, item->size,
                               place_on((CUdevice) hand_pick(hand, DEVICES)), 0, hand->stream));
    return true;
}

static bool take_linear(struct hand *hand, struct item *item)
{
    item->size = hand_size(hand);
    if (!GOT(cuMemAlloc(&item->address, item->size)))
        return false;
    hand_mark(hand, item);
    return true;
}

static bool take_rows(struct hand *hand, struct item *item)
{
    size_t rows = 1 + hand_pick(hand, 4096), pitch;

    if (!GOT(cuMemAllocPitch(&item->address, &pitch, 1 + hand_pick(hand, 8192), rows, 4)))
        return false;
    item->size = rows * pitch;
    hand_mark(hand, item);
    return true;
}

/* Sometimes freed on a stream, like stream-ordered memory. */
static void give_linear(struct hand *hand, struct item *item)
{
    if (hand_chance(hand, 8))
        MUST(cuMemFreeAsync(item->address, hand->stream));
    else
        MUST(cuMemFree(item->address));
}

static bool take_external(struct hand *hand, struct item *item)
{
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC description = {.type =
                                                        CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD};
    int fd = memfd_create("fire", MFD_CLOEXEC);

    item->size = hand_pages(hand);
    if (fd < 0 || ftruncate(fd, (off_t) item->size))
        hand_complain(hand, "memfd_create", fd);
    description.handle.fd = fd;
    description.size = item->size;
    if (GOT(cuImportExternalMemory(&item->external, &description)))
        return true;
    close(fd);
    return false;
}

static void give_external(struct hand *hand, struct item *item)
{
    MUST(cuDestroyExternalMemory(item->external));
}

const struct family family_linear = {.name = "linear",
                                     .take = take_linear,
                                     .give = give_linear,
                                     .needs_context = true,
                                     .goes_with_context = true};
const struct family family_rows = {.name = "pitch",
                                   .take = take_rows,
                                   .give = give_linear,
                                   .needs_context = true,
                                   .goes_with_context = true};
const struct family family_managed = {.name = "managed",
                                      .take = take_managed,
                                      .give = give_linear,
                                      .needs_context = true,
                                      .goes_with_context = true};
const struct family family_external = {
    .name = "external", .take = take_external, .give = give_external, .needs_context = true};
