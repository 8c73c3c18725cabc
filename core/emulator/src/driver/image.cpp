// SPDX-License-Identifier: Apache-2.0
#include "image.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "../machine/error.h"

namespace opdeck::emu {
namespace {

constexpr uint32_t kFatbinMagic = 0xba55ed50;
constexpr uint32_t kFatbinWrapperMagic = 0x466243b1;

template <class T>
T read(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

bool is_elf(const uint8_t* bytes) {
  return std::memcmp(bytes,
                     "\x7f"
                     "ELF\x02",
                     5) == 0;
}

// The end of the last thing that the ELF header and its tables name.
uint64_t elf_size(const uint8_t* elf) {
  const uint64_t program_offset = read<uint64_t>(elf + 32), section_offset = read<uint64_t>(elf + 40);
  const uint64_t program_bytes = uint64_t{read<uint16_t>(elf + 54)} * read<uint16_t>(elf + 56);
  const uint64_t section_entry = read<uint16_t>(elf + 58), num_sections = read<uint16_t>(elf + 60);
  uint64_t end =
      std::max<uint64_t>(64, std::max(program_offset + program_bytes, section_offset + section_entry * num_sections));
  constexpr uint32_t kNoBits = 8;
  for (uint64_t i = 0; i < num_sections; ++i) {
    const uint8_t* const section = elf + section_offset + i * section_entry;
    if (read<uint32_t>(section + 4) == kNoBits) continue;
    end = std::max(end, read<uint64_t>(section + 24) + read<uint64_t>(section + 32));
  }
  return end;
}

std::string_view view(const uint8_t* bytes, uint64_t num_bytes) {
  return {reinterpret_cast<const char*>(bytes), num_bytes};
}

// Header: magic, version (16 bits), header size (16), size of the entries (64). Entry: kind (16 bits; 2 = ELF), version
// (16), header size (32), size (64), ..., flags at 40 (bit 13 or 15: compressed).
std::vector<std::string_view> cubins_of_fatbin(const uint8_t* fatbin) {
  std::vector<std::string_view> cubins;
  const uint8_t* at = fatbin + read<uint16_t>(fatbin + 6);
  const uint8_t* const end = at + read<uint64_t>(fatbin + 8);
  while (at < end) {
    const uint32_t header_bytes = read<uint32_t>(at + 4);
    const uint64_t payload_bytes = read<uint64_t>(at + 8);
    if (header_bytes == 0) break;
    const uint8_t* const payload = at + header_bytes;
    if (read<uint16_t>(at) == 2) {
      if (!is_elf(payload))
        throw EmulatorError(Fault::no_binary, "the fatbin is compressed: build it without compression");
      cubins.push_back(view(payload, elf_size(payload)));
    }
    at = payload + payload_bytes;
  }
  return cubins;
}

bool looks_like_ptx(const char* text) {
  for (const char* at = text; *at != '\0' && at < text + 4096; ++at) {
    if (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n') continue;
    return (at[0] == '/' && (at[1] == '/' || at[1] == '*')) || std::strncmp(at, ".version", 8) == 0;
  }
  return false;
}

}  // namespace

Image parse_image(const void* code) {
  const auto* bytes = static_cast<const uint8_t*>(code);
  if (read<uint32_t>(bytes) == kFatbinWrapperMagic) bytes = read<const uint8_t*>(bytes + 8);
  Image image;
  if (is_elf(bytes)) {
    image.cubins.push_back(view(bytes, elf_size(bytes)));
  } else if (read<uint32_t>(bytes) == kFatbinMagic) {
    image.cubins = cubins_of_fatbin(bytes);
  } else if (looks_like_ptx(reinterpret_cast<const char*>(bytes))) {
    image.ptx = std::string_view(reinterpret_cast<const char*>(bytes));
  }
  if (image.ptx.empty() && image.cubins.empty())
    throw EmulatorError(Fault::no_binary, "the library image is no cubin, no fatbin with one, and no PTX text");
  return image;
}

}  // namespace opdeck::emu
