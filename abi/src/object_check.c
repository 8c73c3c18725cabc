/* SPDX-License-Identifier: Apache-2.0
 *
 * object_check.c: finds packs and emulators that were cut short, by a full disk or a broken download; called by
 * loader.c and driver.c.
 * Source: ELF-64 object file format (elf(5)): the segments and the section headers, which linkers write last.
 * Limits: a file that is changed while it is open, or whose bytes are wrong, is not found.
 */
#include "object_check.h"

#include "text.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static opdeck_status fail_cut(const char *path, uint64_t file_bytes) {
  return od_fail(OPDECK_PACK, "%s: got %llu bytes, want a whole ELF object: the file was cut short", path,
                 (unsigned long long)file_bytes);
}

/* Whether [offset, offset + num_bytes) lies in the file. */
static int is_inside(uint64_t offset, uint64_t num_bytes, uint64_t file_bytes) {
  return offset <= file_bytes && num_bytes <= file_bytes - offset;
}

static opdeck_status check_segments(const char *path, int fd, const Elf64_Ehdr *header, uint64_t file_bytes) {
  for (uint32_t segment_idx = 0; segment_idx < header->e_phnum; ++segment_idx) {
    Elf64_Phdr segment;
    const uint64_t offset = header->e_phoff + segment_idx * sizeof segment;
    if (!is_inside(offset, sizeof segment, file_bytes) ||
        pread(fd, &segment, sizeof segment, (off_t)offset) != (ssize_t)sizeof segment ||
        !is_inside(segment.p_offset, segment.p_filesz, file_bytes))
      return fail_cut(path, file_bytes);
  }
  return OPDECK_OK;
}

static opdeck_status check_file(const char *path, int fd) {
  struct stat file;
  Elf64_Ehdr header;
  if (fstat(fd, &file) != 0) return od_fail(OPDECK_PACK, "%s: %s", path, strerror(errno));
  const uint64_t file_bytes = (uint64_t)file.st_size;
  const ssize_t num_read = pread(fd, &header, sizeof header, 0);
  if (num_read < SELFMAG || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return od_fail(OPDECK_PACK, "%s: it is no ELF object", path);
  if (num_read != (ssize_t)sizeof header) return fail_cut(path, file_bytes);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_phentsize != sizeof(Elf64_Phdr)) return OPDECK_OK;
  if (!is_inside(header.e_shoff, (uint64_t)header.e_shnum * header.e_shentsize, file_bytes))
    return fail_cut(path, file_bytes);
  return check_segments(path, fd, &header, file_bytes);
}

opdeck_status od_check_object(const char *path) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return od_fail(OPDECK_PACK, "%s: %s", path, strerror(errno));
  const opdeck_status status = check_file(path, fd);
  close(fd);
  return status;
}
