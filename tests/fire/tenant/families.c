/* SPDX-License-Identifier: Apache-2.0 */
/* families.c -- all families; one that is listed twice is twice as likely. */
#include "families.h"

const struct family *const families[] = {
    &family_linear,      &family_rows,     &family_managed,  &family_external,   &family_ordered,
    &family_ordered_own, &family_physical, &family_mapped,   &family_multicast,  &family_array,
    &family_mipmap,      &family_sparse,   &family_graph,    &family_graph_kept, &family_captured,
    &family_letter,      &family_opened,   &family_opened,   &family_sent,       &family_sent_pool,
    &family_received,    &family_received, &family_received, &family_green,      &family_filled,
    &family_buffer,
};

const unsigned family_count = LENGTH(families);
