/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c -- the calling thread's identity; see stream.h. */
#include "shim/cuda/work/stream.h"

__thread char stream_thread;
