// SPDX-License-Identifier: Apache-2.0
// Library images: a cubin, a fatbin or PTX text, cut and corrupt. Inputs are given as they are and, so that the walks
// are reached from any corpus, behind a well-formed fatbin header and ELF header.
#include "driver/image.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "machine/error.h"

namespace {

template <class T>
void put(std::vector<uint8_t>& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

void check(const std::vector<uint8_t>& bytes) {
  using namespace opdeck::emu;
  const auto is_inside = [&](std::string_view part) {
    const auto* const first = reinterpret_cast<const char*>(bytes.data());
    return part.data() >= first && part.data() + part.size() <= first + bytes.size();
  };
  try {
    const Image image = parse_image(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    if (!image.ptx.empty() && !is_inside(image.ptx)) std::abort();
    for (const std::string_view cubin : image.cubins)
      if (cubin.size() < 64 || !is_inside(cubin)) std::abort();
  } catch (const EmulatorError&) {
  }
}

// An ELF whose fields in its header are the input's: small values, so that the tables are often inside.
std::vector<uint8_t> elf_of(const uint8_t* data, size_t num_bytes) {
  std::vector<uint8_t> elf(64 + num_bytes);
  std::copy(data, data + num_bytes, elf.begin() + 64);
  std::memcpy(elf.data(), "\x7f""ELF\x02", 5);
  if (num_bytes < 8) return elf;
  put<uint64_t>(elf, 32, data[0]);
  put<uint64_t>(elf, 40, data[1]);
  put<uint16_t>(elf, 54, 56);
  put<uint16_t>(elf, 56, data[2] % 4);
  put<uint16_t>(elf, 58, data[3] % 2 == 0 ? 64 : data[3]);
  put<uint16_t>(elf, 60, data[4] % 8);
  return elf;
}

std::vector<uint8_t> fatbin_of(const std::vector<uint8_t>& payload, uint8_t size_error) {
  std::vector<uint8_t> fatbin(16 + 64);
  put<uint32_t>(fatbin, 0, 0xba55ed50);
  put<uint16_t>(fatbin, 6, 16);
  put<uint64_t>(fatbin, 8, 64 + payload.size() + size_error % 3);
  put<uint16_t>(fatbin, 16, 2);
  put<uint32_t>(fatbin, 20, 64);
  put<uint64_t>(fatbin, 24, payload.size() - size_error % 2);
  fatbin.insert(fatbin.end(), payload.begin(), payload.end());
  return fatbin;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  check({data, data + num_bytes});
  const std::vector<uint8_t> elf = elf_of(data, num_bytes);
  check(elf);
  check(fatbin_of(elf, num_bytes == 0 ? uint8_t{0} : data[num_bytes - 1]));
  return 0;
}
