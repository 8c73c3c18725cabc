// SPDX-License-Identifier: Apache-2.0
#include "image.h"

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "../machine/error.h"

namespace opdeck::emu {
namespace {

constexpr uint32_t kFatbinMagic = 0xba55ed50;
constexpr uint32_t kFatbinWrapperMagic = 0x466243b1;

// Bytes that may be read. Everything that an image says about itself goes through at() or part(), so that a cut or
// corrupt one is an error.
class Bytes {
 public:
  Bytes(const uint8_t* bytes, uint64_t num_bytes) : bytes_(bytes), num_bytes_(num_bytes) {}

  uint64_t size() const { return num_bytes_; }
  const char* text() const { return reinterpret_cast<const char*>(bytes_); }

  Bytes part(uint64_t offset, uint64_t num_bytes) const {
    if (offset > num_bytes_ || num_bytes > num_bytes_ - offset)
      throw EmulatorError(Fault::no_binary, "the library image is cut off or corrupt: it names " +
                                                std::to_string(num_bytes) + " bytes at offset " +
                                                std::to_string(offset) + " of " + std::to_string(num_bytes_));
    return {bytes_ + offset, num_bytes};
  }
  template <class T>
  T at(uint64_t offset) const {
    T value;
    std::memcpy(&value, part(offset, sizeof value).bytes_, sizeof value);
    return value;
  }
  bool starts_with(std::string_view prefix) const {
    return num_bytes_ >= prefix.size() && std::memcmp(bytes_, prefix.data(), prefix.size()) == 0;
  }

 private:
  const uint8_t* bytes_;
  uint64_t num_bytes_;
};

bool is_elf(const Bytes& bytes) {
  return bytes.starts_with(
      "\x7f"
      "ELF\x02");
}

// From its start to the end of the last thing that the ELF header and its tables name.
std::string_view elf_file(const Bytes& elf) {
  uint64_t end = 64;
  const auto include = [&](uint64_t offset, uint64_t num_bytes) {
    elf.part(offset, num_bytes);
    end = std::max(end, offset + num_bytes);
  };
  const uint64_t section_offset = elf.at<uint64_t>(40), section_entry = elf.at<uint16_t>(58);
  const uint64_t num_sections = elf.at<uint16_t>(60);
  include(0, 64);
  include(elf.at<uint64_t>(32), uint64_t{elf.at<uint16_t>(54)} * elf.at<uint16_t>(56));
  include(section_offset, section_entry * num_sections);
  constexpr uint32_t kNoBits = 8;
  for (uint64_t i = 0; i < num_sections; ++i) {
    const uint64_t section = section_offset + i * section_entry;
    if (elf.at<uint32_t>(section + 4) == kNoBits) continue;
    include(elf.at<uint64_t>(section + 24), elf.at<uint64_t>(section + 32));
  }
  return {elf.text(), end};
}

// Header: magic, version (16 bits), header size (16), size of the entries (64). Entry: kind (16 bits; 2 = ELF), version
// (16), header size (32), size (64), ..., flags at 40 (bit 13 or 15: compressed).
std::vector<std::string_view> cubins_of_fatbin(const Bytes& fatbin) {
  std::vector<std::string_view> cubins;
  const Bytes entries = fatbin.part(fatbin.at<uint16_t>(6), fatbin.at<uint64_t>(8));
  for (uint64_t at = 0; at < entries.size();) {
    const uint32_t header_bytes = entries.at<uint32_t>(at + 4);
    const uint64_t payload_bytes = entries.at<uint64_t>(at + 8);
    if (header_bytes == 0) break;
    const Bytes payload = entries.part(at + header_bytes, payload_bytes);
    if (entries.at<uint16_t>(at) == 2) {
      if (!is_elf(payload))
        throw EmulatorError(Fault::no_binary, "the fatbin is compressed: build it without compression");
      cubins.push_back(elf_file(payload));
    }
    at += header_bytes + payload_bytes;
  }
  return cubins;
}

bool looks_like_ptx(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || first >= 4096) return false;
  text.remove_prefix(first);
  return text.substr(0, 2) == "//" || text.substr(0, 2) == "/*" || text.substr(0, 8) == ".version";
}

// How far the memory from `code` on can be read: the end of the mappings around it that follow each other.
uint64_t num_readable_bytes(const void* code) {
  const auto start = reinterpret_cast<uint64_t>(code);
  std::ifstream maps("/proc/self/maps");
  if (!maps) return UINT64_MAX - start;
  uint64_t end = start;
  for (std::string line; std::getline(maps, line);) {
    uint64_t first = 0, last = 0;
    char readable = '-';
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %c", &first, &last, &readable) != 3) continue;
    if (readable == 'r' && first <= end && end < last) end = last;
  }
  return end - start;
}

Bytes readable_bytes(const void* code) { return {static_cast<const uint8_t*>(code), num_readable_bytes(code)}; }

}  // namespace

Image parse_image(std::string_view image_bytes) {
  const Bytes bytes(reinterpret_cast<const uint8_t*>(image_bytes.data()), image_bytes.size());
  const std::string_view text = image_bytes.substr(0, image_bytes.find('\0'));
  Image image;
  if (is_elf(bytes)) {
    image.cubins.push_back(elf_file(bytes));
  } else if (looks_like_ptx(text)) {
    image.ptx = text;
  } else if (bytes.size() >= 4 && bytes.at<uint32_t>(0) == kFatbinMagic) {
    image.cubins = cubins_of_fatbin(bytes);
  }
  if (image.ptx.empty() && image.cubins.empty())
    throw EmulatorError(Fault::no_binary, "the library image is no cubin, no fatbin with one, and no PTX text");
  return image;
}

Image parse_image(const void* code) {
  Bytes bytes = readable_bytes(code);
  if (bytes.size() >= 4 && bytes.at<uint32_t>(0) == kFatbinWrapperMagic)
    bytes = readable_bytes(bytes.at<const uint8_t*>(8));
  return parse_image(std::string_view(bytes.text(), bytes.size()));
}

}  // namespace opdeck::emu
