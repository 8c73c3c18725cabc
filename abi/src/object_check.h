/* SPDX-License-Identifier: Apache-2.0
 *
 * object_check.h: whether a file is a whole ELF object.
 */
#ifndef OPDECK_OBJECT_CHECK_H
#define OPDECK_OBJECT_CHECK_H

#include "opdeck.h"

/* Fails for a file that dlopen would map beyond its end: reading there is a SIGBUS, not an error. */
opdeck_status od_check_object(const char *path);

#endif
