/* SPDX-License-Identifier: Apache-2.0
 *
 * text.h: building text in a buffer of fixed size, and the message of the thread's last error.
 */
#ifndef OPDECK_TEXT_H
#define OPDECK_TEXT_H

#include "opdeck.h"

#if defined(__GNUC__)
#define OD_PRINTF(format_idx, first_idx) __attribute__((format(printf, format_idx, first_idx)))
#else
#define OD_PRINTF(format_idx, first_idx)
#endif

/* Text that is cut at the buffer's end; needed_bytes counts all of it, with its NUL. */
typedef struct od_text {
  char *data;
  size_t capacity_bytes;
  size_t needed_bytes;
} od_text;

od_text od_text_in(char *data, size_t capacity_bytes);
void od_text_add(od_text *text, const char *format, ...) OD_PRINTF(2, 3);

/* Sets the thread's message, and returns `status`. */
opdeck_status od_fail(opdeck_status status, const char *format, ...) OD_PRINTF(2, 3);
/* Every public function begins with this. */
void od_clear_error(void);

/* Checks the struct_size that a caller gave against what this library knows. */
opdeck_status od_check_struct_size(const char *name, uint32_t got, size_t want);

#endif
