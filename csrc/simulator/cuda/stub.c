/* SPDX-License-Identifier: Apache-2.0 */
/* stub.c -- result of functions that the simulator does not implement; see ../stubs.py. */
#include "process.h"

int not_supported(const char *name);

int not_supported(const char *name)
{
    PROCESS_CALL(this_call);
    CUresult entered = process_enter(name, &this_call);

    return entered == CUDA_SUCCESS ? CUDA_ERROR_NOT_SUPPORTED : entered;
}
