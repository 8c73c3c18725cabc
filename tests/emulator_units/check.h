// SPDX-License-Identifier: Apache-2.0
// The assertions of these unit tests: a failed one is printed and counted, and main returns check::result().
#pragma once

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <random>

namespace check {

inline int num_failures = 0;
inline long num_checks = 0;

// Counts one check; prints what failed, the first 20 times.
template <class... Context>
bool that(bool condition, const char* file, int line, const Context&... context) {
  ++num_checks;
  if (condition) return true;
  if (++num_failures <= 20) {
    std::cerr << file << ":" << line << ": ";
    ((std::cerr << context << " "), ...);
    std::cerr << "\n";
  }
  return false;
}

inline int result() {
  std::cerr << num_checks << " checks, " << num_failures << " failed\n";
  return num_failures == 0 && num_checks > 0 ? 0 : 1;
}

}  // namespace check

#define CHECK(condition, ...) check::that((condition), __FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__)
#define CHECK_EQ(got, want, ...) \
  check::that((got) == (want), __FILE__, __LINE__, #got " is", (got), "want", (want) __VA_OPT__(, ) __VA_ARGS__)
// That an error message mentions `part`.
#define CHECK_ERROR(error, part)                                                                             \
  check::that((error).find(part) != std::string::npos, __FILE__, __LINE__, "error is", "\"" + (error) + "\"", \
              "want one with", part)
