/* SPDX-License-Identifier: Apache-2.0 */
/* fd_marker.h -- marks descriptors of exported memory by OFD locks, to find out if one is still
 * open.
 *
 * A descriptor keeps its memory wherever it goes: in its process, in copies, in a socket, in a
 * process that does not use CUDA. Only the kernel knows when it ends: a lock on a byte of its file
 * belongs to the open file description, and goes when the last copy of it is closed. The bytes lie
 * far beyond any file's data, and the key of an export determines which are its own.
 *
 * Another process tests for such a lock by opening the file once more. The descriptors of one
 * container belong to a few files, the driver's; the usage file lists their paths, one after the
 * other. A dma-buf is a file of its own, and no path opens it: its lock is looked up in the
 * kernel's list of all locks, which takes longer. A descriptor of a further file, or of a dma-buf
 * where that list cannot be read, is not marked: its export has no known end (shared_memory.h).
 * Knows no CUDA.
 */
#ifndef PYVGPU_CORE_FD_MARKER_H
#define PYVGPU_CORE_FD_MARKER_H

#include "core/region.h"

#define MARKER_FILES 4

/* A series of queries: the first one opens the files, and fd_marker_end() closes them. */
struct fd_marker {
    struct usage_file *usage;
    int files[MARKER_FILES]; /* -1: not open */
    int list;                /* which of them is the kernel's list of locks; -1: none */
    int early;               /* do not read it */
    int error;               /* the program's errno */
    int cancel;
};

/* *early*: count what has to be looked up in the kernel's list of locks as open. */
void fd_marker_begin(struct fd_marker *marker, struct usage_file *usage, int early);
void fd_marker_end(struct fd_marker *marker);

/* For lookups that are not urgent: whether this process made one less than 250 ms ago, since the
 * kernel takes some 10 ms for a list of locks. If not, this is one. */
int fd_marker_is_early(void);

/* Mark *descriptor* as carrying *key*, perhaps one of several: 0 if it could not be found out
 * later when it is closed. */
int fd_marker_mark(struct fd_marker *marker, int descriptor, uint64_t key);

/* Whether a descriptor that carries *key* is open; also 1 if that cannot be found out. */
int fd_marker_is_open(struct fd_marker *marker, uint64_t key);

/* Whether *descriptor* is one of them, or a copy of one. */
int fd_marker_is(struct fd_marker *marker, int descriptor, uint64_t key);

#endif
