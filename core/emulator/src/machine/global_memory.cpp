// SPDX-License-Identifier: Apache-2.0
#include "global_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "error.h"

namespace opdeck::emu {
namespace {

constexpr uint64_t kRedZoneBytes = 4096;
constexpr uint8_t kRedZoneFill = 0xfd;
constexpr uint8_t kPoisonFill = 0xff;  // NaN in every format that has one

bool allows(Access allowed, Access wanted) {
  return (static_cast<uint8_t>(allowed) & static_cast<uint8_t>(wanted)) == static_cast<uint8_t>(wanted);
}

}  // namespace

// The tensor as bytes: elements below 8 bits stand in groups along the contiguous dimension.
Region Region::from_tensor(const opdeck_emu_tensor& tensor) {
  Region region;
  region.name_ = tensor.name != nullptr && tensor.name[0] != '\0' ? tensor.name : "tensor";
  const auto invalid = [&](const std::string& why) {
    throw EmulatorError(Fault::invalid_value, "tensor '" + region.name_ + "': " + why);
  };
  if (tensor.access < 1 || tensor.access > 3) invalid("access must be 1, 2 or 3, got " + std::to_string(tensor.access));
  if (tensor.num_dims < 0 || tensor.num_dims > 32) invalid("num_dims " + std::to_string(tensor.num_dims));
  const uint64_t bits = static_cast<uint64_t>(tensor.elem_bits);
  if (tensor.elem_bits <= 0 || tensor.elem_bits > 128) invalid("elem_bits " + std::to_string(tensor.elem_bits));
  int64_t low_bits = 0;
  std::vector<Dimension> dimensions;
  bool empty = false;
  uint64_t elem_bytes = std::max<uint64_t>(bits / 8, 1);
  for (int32_t i = 0; i < tensor.num_dims; ++i) {
    const int64_t extent = tensor.shape[i], stride_bits = tensor.strides[i] * static_cast<int64_t>(bits);
    if (extent < 0) invalid("shape[" + std::to_string(i) + "] is negative");
    empty |= extent == 0;
    if (extent <= 1 || stride_bits == 0) continue;
    if (stride_bits < 0) low_bits += stride_bits * (extent - 1);
    const uint64_t pitch_bits = static_cast<uint64_t>(stride_bits < 0 ? -stride_bits : stride_bits);
    if (bits % 8 != 0 && pitch_bits == bits) {
      elem_bytes = (bits * static_cast<uint64_t>(extent) + 7) / 8;  // a packed row
      continue;
    }
    if (pitch_bits % 8 != 0) invalid("stride " + std::to_string(i) + " is not a whole number of bytes");
    dimensions.push_back({pitch_bits / 8, static_cast<uint64_t>(extent)});
  }
  region.begin_ = reinterpret_cast<uint64_t>(tensor.data) + static_cast<uint64_t>(low_bits / 8);
  region.allowed_ = static_cast<Access>(tensor.access);
  if (!empty) region.set_layout(std::move(dimensions), elem_bytes);
  if (region.allowed_ == Access::write) region.written_.assign(region.size_bytes_, 0);
  return region;
}

Region Region::from_block(std::string name, uint64_t address, uint64_t size_bytes) {
  Region region;
  region.name_ = std::move(name);
  region.begin_ = address;
  region.set_layout({}, size_bytes);
  return region;
}

void Region::set_layout(std::vector<Dimension> dimensions, uint64_t elem_bytes) {
  std::sort(dimensions.begin(), dimensions.end(),
            [](const Dimension& x, const Dimension& y) { return x.stride_bytes < y.stride_bytes; });
  run_bytes_ = elem_bytes;
  uint64_t extent = elem_bytes;  // of everything so far
  outer_.clear();
  for (const Dimension& dimension : dimensions) {
    if (dimension.stride_bytes < extent || (outer_.empty() && dimension.stride_bytes == run_bytes_)) {
      // Contiguous, or overlapping: one longer run.
      extent = run_bytes_ = (dimension.count - 1) * dimension.stride_bytes + extent;
      outer_.clear();
    } else {
      extent = (dimension.count - 1) * dimension.stride_bytes + extent;
      outer_.insert(outer_.begin(), dimension);
    }
  }
  size_bytes_ = extent;
}

bool Region::is_element_run(uint64_t address, uint64_t num_bytes) const {
  uint64_t offset = address - begin_;
  for (const Dimension& dimension : outer_)
    offset -= std::min(offset / dimension.stride_bytes, dimension.count - 1) * dimension.stride_bytes;
  return offset + num_bytes <= run_bytes_;
}

std::string Region::check(uint64_t address, uint64_t num_bytes, Access access) {
  if (!outer_.empty() && !is_element_run(address, num_bytes)) return "lies between the elements of '" + name_ + "'";
  if (written_.empty()) {
    if (allows(allowed_, access)) return {};
    return "'" + name_ + "' is registered for reading only";
  }
  uint8_t* const flags = written_.data() + (address - begin_);
  if (allows(access, Access::read) && std::memchr(flags, 0, num_bytes) != nullptr)
    return "'" + name_ + "' is an output, and these bytes were not written yet";
  if (allows(access, Access::write)) std::memset(flags, 1, num_bytes);
  return {};
}

GlobalMemory::~GlobalMemory() {
  for (const auto& block : blocks_) std::free(block->memory);
}

Region& GlobalMemory::find_allowed(uint64_t address, uint64_t num_bytes, Access access) {
  std::string reason;
  const auto allows = [&](Region& region) {
    if (!region.contains(address, num_bytes)) return false;
    const std::string why = region.check(address, num_bytes, access);
    if (!why.empty()) reason = why;
    return why.empty();
  };
  for (Region& region : tensors_)
    if (allows(region)) return region;
  for (const auto& block : blocks_)
    if (allows(block->region)) return block->region;
  for (Region& region : variables_)
    if (allows(region)) return region;
  fail(address, num_bytes, access, reason);
}

void GlobalMemory::fail(uint64_t address, uint64_t num_bytes, Access access, const std::string& reason) const {
  const char* verb = access == Access::read ? "read" : access == Access::write ? "write" : "atomic";
  std::string text =
      std::string(verb) + " of " + std::to_string(num_bytes) + " bytes at global address " + hex(address);
  if (!reason.empty()) throw EmulatorError(Fault::illegal_address, text + ": " + reason);
  text += ": inside no registered tensor and no device allocation";
  const Region* nearest = nullptr;
  uint64_t nearest_distance = uint64_t{1} << 20;
  const auto consider = [&](const Region& region) {
    const uint64_t end = region.begin() + region.size_bytes();
    const uint64_t distance = address < region.begin() ? region.begin() - address : address >= end ? address - end : 0;
    if (distance >= nearest_distance) return;
    nearest = &region;
    nearest_distance = distance;
  };
  for (const Region& region : tensors_) consider(region);
  for (const auto& block : blocks_) consider(block->region);
  if (nearest != nullptr) {
    const bool before = address < nearest->begin();
    text += " (" + std::to_string(nearest_distance) + " bytes " + (before ? "before" : "behind the end of") + " '" +
            nearest->name() + "')";
  }
  throw EmulatorError(Fault::illegal_address, text);
}

const Region* GlobalMemory::find(uint64_t address) const {
  for (const Region& region : tensors_)
    if (region.contains(address, 1)) return &region;
  for (const auto& block : blocks_)
    if (block->region.contains(address, 1)) return &block->region;
  for (const Region& region : variables_)
    if (region.contains(address, 1)) return &region;
  return nullptr;
}

bool GlobalView::is_read_only(uint64_t address) const {
  const Region* region = region_of(address);
  return region != nullptr && region->is_read_only();
}

uint64_t GlobalView::base_of(uint64_t address) const {
  const Region* region = region_of(address);
  return region != nullptr ? region->begin() : 0;
}

std::string GlobalView::describe(uint64_t address) const {
  const Region* region = region_of(address);
  if (region == nullptr) return "global address " + hex(address);
  return "byte " + std::to_string(address - region->begin()) + " of '" + region->name() + "'";
}

void GlobalMemory::set_tensors(const opdeck_emu_tensor* tensors, uint32_t num_tensors) {
  clear_tensors();
  for (uint32_t i = 0; i < num_tensors; ++i) tensors_.push_back(Region::from_tensor(tensors[i]));
}

void GlobalMemory::set_variables(const std::vector<Program::Variable>& variables) {
  variables_.clear();
  for (const Program::Variable& v : variables)
    variables_.push_back(Region::from_block(v.name, v.address, v.size_bytes));
}

uint64_t GlobalMemory::allocate(uint64_t size_bytes, const std::string& name) {
  if (size_bytes == 0 || size_bytes > (uint64_t{1} << 40)) return 0;
  auto block = std::make_unique<Block>();
  const uint64_t body_bytes = (size_bytes + kRedZoneBytes - 1) / kRedZoneBytes * kRedZoneBytes;
  block->memory_bytes = body_bytes + 2 * kRedZoneBytes;
  block->memory = static_cast<uint8_t*>(std::aligned_alloc(kRedZoneBytes, block->memory_bytes));
  if (block->memory == nullptr) return 0;
  uint8_t* const body = block->memory + kRedZoneBytes;
  std::memset(block->memory, kRedZoneFill, block->memory_bytes);
  std::memset(body, kPoisonFill, size_bytes);
  block->region = Region::from_block(name, reinterpret_cast<uint64_t>(body), size_bytes);
  blocks_.push_back(std::move(block));
  return reinterpret_cast<uint64_t>(body);
}

bool GlobalMemory::free(uint64_t address) {
  const auto it =
      std::find_if(blocks_.begin(), blocks_.end(), [&](const auto& block) { return block->region.begin() == address; });
  if (it == blocks_.end()) return false;
  std::free((*it)->memory);
  blocks_.erase(it);
  return true;
}

bool GlobalMemory::in_heap(uint64_t address, uint64_t num_bytes) const {
  return std::any_of(blocks_.begin(), blocks_.end(),
                     [&](const auto& block) { return block->region.contains(address, num_bytes); });
}

void GlobalMemory::check_red_zones() const {
  for (const auto& block : blocks_) {
    const uint64_t body = block->region.begin() - reinterpret_cast<uint64_t>(block->memory);
    for (uint64_t i = 0; i < block->memory_bytes; ++i) {
      if (i == body) i += block->region.size_bytes();
      if (block->memory[i] != kRedZoneFill)
        throw EmulatorError(Fault::illegal_address, "the red zone of device allocation '" + block->region.name() +
                                                        "' was overwritten at byte " +
                                                        std::to_string(static_cast<int64_t>(i - body)));
    }
  }
}

}  // namespace opdeck::emu
