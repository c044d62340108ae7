/* SPDX-License-Identifier: Apache-2.0 */
/* log.h -- the shim's lines on standard error. Nothing is said on success.
 *
 * An error is always shown. A refusal is shown once PYVGPU_LOG=info is set, for a program that is
 * refused memory often does so on purpose. Formatting happens after one cached integer was tested.
 */
#ifndef PYVGPU_LOG_H
#define PYVGPU_LOG_H

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
