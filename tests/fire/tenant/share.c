/* SPDX-License-Identifier: Apache-2.0 */
/* share.c -- memory of other tenants: by a handle on the board, by a descriptor through a socket.
 *
 * The exporter may be dead, or may have freed it long ago. Opening it may then fail with any error;
 * memory that was opened exists.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "families.h"

enum { MAIL = 64 }; /* more messages than a mailbox can hold */

enum content { CONTENT_PHYSICAL, CONTENT_POOL };

struct message {
    enum content content;
    size_t size;
    CUdevice device;
    CUmemPoolPtrExportData block;
};

static int mailbox = -1;

static struct sockaddr_un address_of(unsigned place)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    snprintf(address.sun_path, sizeof(address.sun_path), "box-%u", place);
    return address;
}

void share_begin(void)
{
    struct sockaddr_un address = address_of(tenant.place);

    unlink(address.sun_path);
    mailbox = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (mailbox < 0 || bind(mailbox, (struct sockaddr *) &address, sizeof(address))) {
        perror("tenant: mailbox");
        exit(3);
    }
}

/* --- by a handle ----------------------------------------------------------------------------- */

/* A tenant that is killed meanwhile leaves an odd turn. */
static void write_letter(struct hand *hand, const CUipcMemHandle *handle, size_t size)
{
    struct letter *letter = &hand->board->letter;
    uint32_t turn = atomic_load(&letter->turn) | 1;

    atomic_store(&letter->turn, turn);
    letter->is_there = handle != NULL;
    letter->size = size;
    if (handle)
        memcpy(letter->handle, handle, sizeof(letter->handle));
    atomic_store(&letter->turn, turn + 1);
}

static bool read_letter(const struct letter *letter, CUipcMemHandle *handle, size_t *size)
{
    uint32_t turn = atomic_load(&letter->turn);
    bool is_there = letter->is_there;

    memcpy(handle, letter->handle, sizeof(*handle));
    *size = letter->size;
    atomic_thread_fence(memory_order_seq_cst);
    return is_there && !(turn & 1) && turn == atomic_load(&letter->turn);
}

static bool take_letter(struct hand *hand, struct item *item)
{
    CUipcMemHandle handle;

    if (!family_linear.take(hand, item))
        return false;
    if (GOT(cuIpcGetMemHandle(&handle, item->address)))
        write_letter(hand, &handle, item->size);
    return true;
}

static void give_letter(struct hand *hand, struct item *item)
{
    if (hand_chance(hand, 2))
        write_letter(hand, NULL, 0);
    MUST(cuMemFree(item->address));
}

static bool take_opened(struct hand *hand, struct item *item)
{
    unsigned place = hand_pick(hand, PLACES), thread = hand_pick(hand, THREADS);
    CUipcMemHandle handle;

    if (place == hand->place ||
        !read_letter(&tenant.board->threads[place][thread].letter, &handle, &item->size))
        return false;
    return cuIpcOpenMemHandle(&item->address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ==
           CUDA_SUCCESS;
}

static void give_opened(struct hand *hand, struct item *item)
{
    uint32_t word;

    MUST(cuMemcpyDtoH(&word, item->address, 4));
    MUST(cuIpcCloseMemHandle(item->address));
}

/* --- by a descriptor ------------------------------------------------------------------------- */

/* The message may not arrive. */
static void send_to(unsigned place, const struct message *message, int descriptor)
{
    struct sockaddr_un address = address_of(place);
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {(void *) message, sizeof(*message)};
    struct msghdr header = {.msg_name = &address,
                            .msg_namelen = sizeof(address),
                            .msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control,
                            .msg_controllen = sizeof(control)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);

    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &descriptor, sizeof(int));
    sendmsg(mailbox, &header, MSG_DONTWAIT);
    close(descriptor);
}

/* The descriptor, or -1. */
static int receive(struct message *message)
{
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {message, sizeof(*message)};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control,
                            .msg_controllen = sizeof(control)};
    struct cmsghdr *rights;
    int descriptor = -1;

    if (recvmsg(mailbox, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof(*message))
        return -1;
    rights = CMSG_FIRSTHDR(&header);
    if (rights && rights->cmsg_type == SCM_RIGHTS)
        memcpy(&descriptor, CMSG_DATA(rights), sizeof(int));
    return descriptor;
}

static unsigned other_place(struct hand *hand)
{
    return (hand->place + 1 + hand_pick(hand, PLACES - 1)) % PLACES;
}

static bool take_sent(struct hand *hand, struct item *item)
{
    struct message message = {.content = CONTENT_PHYSICAL};
    int descriptor;

    if (!family_physical.take(hand, item))
        return false;
    message.size = item->size;
    message.device = item->device;
    if (GOT(cuMemExportToShareableHandle(&descriptor, item->handle,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)))
        send_to(other_place(hand), &message, descriptor);
    return true;
}

static bool take_received_physical(struct hand *hand, struct item *item,
                                   const struct message *message, int descriptor)
{
    CUmemAccessDesc access = {place_on(message->device), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    item->size = message->size;
    if (!GOT(cuMemImportFromShareableHandle(&item->handle, (void *) (intptr_t) descriptor,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)))
        return false;
    if (hand_chance(hand, 4))
        return true;
    MUST(cuMemAddressReserve(&item->address, item->size, 0, 0, 0));
    if (!GOT(cuMemMap(item->address, item->size, 0, item->handle, 0))) {
        MUST(cuMemAddressFree(item->address, item->size));
        item->address = 0;
        return true;
    }
    MUST(cuMemSetAccess(item->address, item->size, &access, 1));
    return true;
}

/* The block may be gone with its pool. */
static bool take_received_block(struct hand *hand, struct item *item, const struct message *message,
                                int descriptor)
{
    CUmemPoolPtrExportData block = message->block;

    if (!GOT(cuMemPoolImportFromShareableHandle(&item->pool, (void *) (intptr_t) descriptor,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)))
        return false;
    if (cuMemPoolImportPointer(&item->address, item->pool, &block) != CUDA_SUCCESS)
        item->address = 0;
    return true;
}

static bool take_received(struct hand *hand, struct item *item)
{
    struct message message;
    int descriptor = receive(&message);
    bool is_taken;

    if (descriptor < 0)
        return false;
    item->second = message.content;
    if (message.content == CONTENT_POOL)
        is_taken = take_received_block(hand, item, &message, descriptor);
    else
        is_taken = take_received_physical(hand, item, &message, descriptor);
    close(descriptor);
    return is_taken;
}

static void give_received(struct hand *hand, struct item *item)
{
    if (item->second == CONTENT_POOL) {
        if (item->address)
            MUST(cuMemFreeAsync(item->address, hand->stream));
        MUST(cuStreamSynchronize(hand->stream));
        MUST(cuMemPoolDestroy(item->pool));
        return;
    }
    if (item->address) {
        MUST(cuMemUnmap(item->address, item->size));
        MUST(cuMemAddressFree(item->address, item->size));
    }
    MUST(cuMemRelease(item->handle));
}

/* An export that was never imported stays charged: a holder of the descriptor might import it. */
void share_receive_all(struct hand *hand)
{
    unsigned missed = 0;

    hand_does(hand, "the mail");
    while (hand->context && missed < MAIL) {
        struct item item = {.family = &family_received};

        if (take_received(hand, &item))
            give_received(hand, &item);
        else
            missed++;
    }
}

static bool take_block(struct hand *hand, struct item *item)
{
    item->size = hand_size(hand);
    if (!GOT(cuMemAllocFromPoolAsync(&item->address, item->size, item->pool, hand->stream)))
        return false;
    MUST(cuStreamSynchronize(hand->stream));
    return true;
}

static bool take_sent_pool(struct hand *hand, struct item *item)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                            .location = place_on(item->device)};
    struct message message = {.content = CONTENT_POOL, .device = item->device};
    int descriptor;

    if (!GOT(cuMemPoolCreate(&item->pool, &props)))
        return false;
    if (!take_block(hand, item)) {
        MUST(cuMemPoolDestroy(item->pool));
        return false;
    }
    if (GOT(cuMemPoolExportToShareableHandle(&descriptor, item->pool,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))) {
        MUST(cuMemPoolExportPointer(&message.block, item->address));
        send_to(other_place(hand), &message, descriptor);
    }
    return true;
}

static void give_sent_pool(struct hand *hand, struct item *item)
{
    MUST(cuMemFreeAsync(item->address, hand->stream));
    if (hand_chance(hand, 2))
        MUST(cuStreamSynchronize(hand->stream));
    MUST(cuMemPoolDestroy(item->pool));
}

static void give_sent(struct hand *hand, struct item *item)
{
    MUST(cuMemRelease(item->handle));
}

const struct family family_letter = {
    .name = "letter", .take = take_letter, .give = give_letter, .needs_context = true};
const struct family family_opened = {
    .name = "opened letter", .take = take_opened, .give = give_opened, .needs_context = true};
const struct family family_sent = {.name = "sent memory", .take = take_sent, .give = give_sent};
const struct family family_sent_pool = {
    .name = "sent pool", .take = take_sent_pool, .give = give_sent_pool, .needs_context = true};
const struct family family_received = {
    .name = "received", .take = take_received, .give = give_received, .needs_context = true};
