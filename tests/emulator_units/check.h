// SPDX-License-Identifier: Apache-2.0
// The assertions of these unit tests: a failed one is printed and counted, and main returns check::result().
#pragma once

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <random>
#include <string>

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

template <class Got, class Want, class... Context>
bool equal(const Got& got, const Want& want, const char* what, const char* file, int line, const Context&... context) {
  return that(got == want, file, line, what, "is", got, "want", want, context...);
}

// That an error message mentions `part`.
inline bool mentions(const std::string& error, const char* part, const char* file, int line) {
  return that(error.find(part) != std::string::npos, file, line, "error is", '"' + error + '"', "want one with", part);
}

inline int result() {
  std::cerr << num_checks << " checks, " << num_failures << " failed\n";
  return num_failures == 0 && num_checks > 0 ? 0 : 1;
}

}  // namespace check

#define CHECK(condition, ...) check::that((condition), __FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__)
#define CHECK_EQ(got, want, ...) check::equal((got), (want), #got, __FILE__, __LINE__ __VA_OPT__(, ) __VA_ARGS__)
#define CHECK_ERROR(error, part) check::mentions((error), (part), __FILE__, __LINE__)
