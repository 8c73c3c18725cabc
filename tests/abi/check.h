/* SPDX-License-Identifier: Apache-2.0
 *
 * check.h: the checks of the C tests. A failed check prints and counts; main returns check_exit_status().
 */
#ifndef OPDECK_TESTS_CHECK_H
#define OPDECK_TESTS_CHECK_H

#include "opdeck.h"

#include <stdio.h>
#include <string.h>

static int num_failed_checks;

static inline int check_exit_status(void) {
  if (num_failed_checks > 0) printf("%d checks failed\n", num_failed_checks);
  return num_failed_checks > 0;
}

#define CHECK(condition)                                             \
  do {                                                               \
    if (!(condition)) {                                              \
      printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      ++num_failed_checks;                                           \
    }                                                                \
  } while (0)

static inline void check_status_at(int line, const char *call, opdeck_status got, opdeck_status want,
                                   const char *text) {
  if (got == want && strstr(opdeck_last_error(), text) != NULL && (want != OPDECK_OK || opdeck_last_error()[0] == '\0'))
    return;
  printf("line %d: %s\n  got  %s \"%s\"\n  want %s \"%s\"\n", line, call, opdeck_status_name(got), opdeck_last_error(),
         opdeck_status_name(want), text);
  ++num_failed_checks;
}

/* The status, and a part of the message that names argument, got and wanted. */
#define CHECK_STATUS(call, want, text) check_status_at(__LINE__, #call, (call), (want), (text))
#define CHECK_OK(call) CHECK_STATUS(call, OPDECK_OK, "")

#endif
