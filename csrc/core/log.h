/* SPDX-License-Identifier: Apache-2.0 */
/* log.h -- the shim's log on standard error. Success is never logged.
 *
 * Errors are always logged. Refusals are logged if PYVGPU_LOG=info is set, for programs often ask
 * for too much memory on purpose. One cached integer is tested before anything is formatted.
 */
#ifndef PYVGPU_CORE_LOG_H
#define PYVGPU_CORE_LOG_H

enum log_level { LOG_ERROR = 0, LOG_INFO = 1 };

extern int log_threshold;

/* Read PYVGPU_LOG (error or info); called once. */
void log_configure(void);

void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_info(...)                                       \
    do {                                                    \
        if (__builtin_expect(log_threshold >= LOG_INFO, 0)) \
            log_write(LOG_INFO, __VA_ARGS__);               \
    } while (0)

#endif
