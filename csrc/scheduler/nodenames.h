/* SPDX-License-Identifier: Apache-2.0 */
/* nodenames.h -- names of nodes as they stand in JSON, thousands of them, in an instant.
 *
 * kube-scheduler asks about all nodes by name and is answered by name, for each pod. What is known
 * of a node is one byte, its code; here the names of a question become codes, and names with
 * certain codes the text of an answer. What codes mean, and what is done with what is not plain, is
 * decided in controller/scheduler/listed.py; csrc/layout_build.py gives it the part between the
 * marks.
 *
 * A text is what stands between the brackets of a list of names: `"a","b"`, with any spaces. It is
 * plain if it is ASCII without escapes, so that bytes are letters. A table is changed by one thread
 * while no other looks.
 */
#ifndef PYVGPU_SCHEDULER_NODENAMES_H
#define PYVGPU_SCHEDULER_NODENAMES_H

#include <stdint.h>

/* BEGIN LAYOUT */

struct nodenames; /* names, each with its number */

struct nodenames_form { /* what is written of a name, the name with its quotes between the two */
    const char *before; /* NULL: nothing at all, not the name either */
    const char *after;
    uint32_t before_size;
    uint32_t after_size;
};

struct nodenames *nodenames_new(void); /* NULL: no memory */
void nodenames_free(struct nodenames *table);

/* Give a name that the table lacks a number; 0, or -1: no memory. */
int nodenames_add(struct nodenames *table, const char *name, uint32_t size, uint32_t number);

/* How many names a text has; -1: it is not plain, or no list. The others take plain ones alone. */
int64_t nodenames_count(const char *text, uint64_t size);

/* Write the code of each name of a text, in their order. *known* codes are those of the numbers
 * from 0; whoever has no such number gets *unknown*. */
void nodenames_look(const struct nodenames *table, const char *text, uint64_t size,
                    const uint8_t *codes, uint64_t known, uint8_t unknown, uint8_t *found);

/* Write each name of a text in the form of its code; the number of bytes, which no *out* takes. */
uint64_t nodenames_write(const char *text, uint64_t size, const uint8_t *found,
                         const struct nodenames_form *forms, char *out);

/* END LAYOUT */

#endif
