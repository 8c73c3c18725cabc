/* SPDX-License-Identifier: Apache-2.0
 *
 * text.c: text in fixed buffers; the thread's error message; names of statuses.
 */
#include "text.h"

#include <stdarg.h>
#include <stdio.h>

enum {
  MESSAGE_BYTES = 8192
};

static _Thread_local char message[MESSAGE_BYTES];

od_text od_text_in(char *data, size_t capacity_bytes) {
  const od_text text = {data, data == NULL ? 0 : capacity_bytes, 1};
  if (text.capacity_bytes > 0) data[0] = '\0';
  return text;
}

static void add_formatted(od_text *text, const char *format, va_list args) {
  const size_t used = text->needed_bytes - 1;
  const size_t left = used < text->capacity_bytes ? text->capacity_bytes - used : 0;
  const int length = vsnprintf(left > 0 ? text->data + used : NULL, left, format, args);
  if (length > 0) text->needed_bytes += (size_t)length;
}

void od_text_add(od_text *text, const char *format, ...) {
  va_list args;
  va_start(args, format);
  add_formatted(text, format, args);
  va_end(args);
}

opdeck_status od_fail(opdeck_status status, const char *format, ...) {
  /* The arguments may quote the present message, so the new one is made beside it. */
  char made[MESSAGE_BYTES];
  va_list args;
  va_start(args, format);
  const int length = vsnprintf(made, sizeof made, format, args);
  va_end(args);
  od_text text = od_text_in(message, sizeof message);
  od_text_add(&text, "%s", length < 0 ? opdeck_status_name(status) : made);
  return status;
}

void od_clear_error(void) { message[0] = '\0'; }

const char *opdeck_last_error(void) { return message; }

opdeck_status od_check_struct_size(const char *name, uint32_t got, size_t want) {
  if (got == want) return OPDECK_OK;
  if (got > want)
    return od_fail(
        OPDECK_VERSION,
        "%s.struct_size: got %u, want %zu: the program was built with a header newer than this libopdeck %d.%d", name,
        (unsigned)got, want, OPDECK_VERSION_MAJOR, OPDECK_VERSION_MINOR);
  return od_fail(OPDECK_INVALID_ARGUMENT, "%s.struct_size: got %u, want %zu (sizeof the struct)", name, (unsigned)got,
                 want);
}

uint32_t opdeck_version(void) { return OPDECK_VERSION_MAJOR << 16 | OPDECK_VERSION_MINOR; }

const char *opdeck_status_name(opdeck_status status) {
  switch (status) {
    case OPDECK_OK: return "OK";
    case OPDECK_INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case OPDECK_UNSUPPORTED: return "UNSUPPORTED";
    case OPDECK_NO_DRIVER: return "NO_DRIVER";
    case OPDECK_NO_DEVICE: return "NO_DEVICE";
    case OPDECK_DRIVER: return "DRIVER";
    case OPDECK_PACK: return "PACK";
    case OPDECK_VERSION: return "VERSION";
    case OPDECK_EMULATOR: return "EMULATOR";
    case OPDECK_WORKSPACE: return "WORKSPACE";
    case OPDECK_INTERNAL: return "INTERNAL";
  }
  return "unknown status";
}
