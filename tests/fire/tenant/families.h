/* SPDX-License-Identifier: Apache-2.0 */
/* families.h -- every family of device memory, each in the file that its name begins with. */
#ifndef FIRE_FAMILIES_H
#define FIRE_FAMILIES_H

#include "tenant.h"

extern const struct family family_linear, family_rows, family_managed, family_external;
extern const struct family family_ordered, family_ordered_own, family_filled;
extern const struct family family_physical, family_mapped, family_multicast;
extern const struct family family_array, family_mipmap, family_sparse;
extern const struct family family_green, family_buffer;
extern const struct family family_graph, family_captured, family_graph_kept;
extern const struct family family_letter, family_opened, family_sent, family_received,
    family_sent_pool;

#endif
