// SPDX-License-Identifier: Apache-2.0
// What a kernel may touch in global memory: the device heap (cuMemAlloc) and the host tensors of a session.
// Called by memory instructions and bulk copies (src/isa) and by src/driver. Checks are by element: an address
// between the rows of a strided tensor is illegal, so is reading an output before the kernel wrote it.
// Limits: tensors whose elements overlap (strides smaller than the inner extent) are checked as one dense span.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "opdeck_emu.h"
#include "program.h"

namespace opdeck::emu {

enum class Access : uint8_t { read = 1, write = 2, read_write = 3 };

// One legal piece of global memory: a dense run of bytes repeated over outer dimensions.
class Region {
 public:
  static Region from_tensor(const opdeck_emu_tensor& tensor);
  static Region from_block(std::string name, uint64_t address, uint64_t size_bytes);

  bool contains(uint64_t address, uint64_t num_bytes) const {
    return address >= begin_ && address - begin_ < size_bytes_ && size_bytes_ - (address - begin_) >= num_bytes;
  }
  // Whether the bytes are elements of the tensor (given contains()).
  bool is_element_run(uint64_t address, uint64_t num_bytes) const;
  // Empty when the access is allowed. Marks written bytes.
  std::string check(uint64_t address, uint64_t num_bytes, Access access);

  const std::string& name() const { return name_; }
  bool is_read_only() const { return allowed_ == Access::read; }
  uint64_t begin() const { return begin_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  struct Dimension {
    uint64_t stride_bytes, count;
  };
  void set_layout(std::vector<Dimension> dimensions, uint64_t elem_bytes);

  std::string name_;
  uint64_t begin_ = 0, size_bytes_ = 0;
  uint64_t run_bytes_ = 0;        // contiguous elements
  std::vector<Dimension> outer_;  // largest stride first
  Access allowed_ = Access::read_write;
  std::vector<uint8_t> written_;  // one a byte; empty when the memory starts initialised
};

class GlobalMemory {
 public:
  GlobalMemory() = default;
  ~GlobalMemory();
  GlobalMemory(const GlobalMemory&) = delete;
  GlobalMemory& operator=(const GlobalMemory&) = delete;

  // The region that allows an access; throws EmulatorError (illegal address) when there is none.
  Region& find_allowed(uint64_t address, uint64_t num_bytes, Access access);
  // The region around an address; NULL when there is none.
  const Region* find(uint64_t address) const;

  void set_tensors(const opdeck_emu_tensor* tensors, uint32_t num_tensors);
  void clear_tensors() { tensors_.clear(); }
  // The .global and .const variables of the kernel that runs next.
  void set_variables(const std::vector<Program::Variable>& variables);

  // The device heap: blocks between red zones, poisoned. 0 when there is no memory.
  uint64_t allocate(uint64_t size_bytes, const std::string& name);
  bool free(uint64_t address);
  bool in_heap(uint64_t address, uint64_t num_bytes) const;
  // Throws when a red zone was overwritten (by host code: device accesses are checked).
  void check_red_zones() const;

 private:
  struct Block {
    Region region;
    uint8_t* memory = nullptr;
    uint64_t memory_bytes = 0;
  };
  [[noreturn]] void fail(uint64_t address, uint64_t num_bytes, Access access, const std::string& reason) const;

  std::vector<Region> tensors_, variables_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

// Global memory as the clusters of one thread see it: remembers where the last access was. No region may be added or
// removed in its life.
class GlobalView {
 public:
  explicit GlobalView(GlobalMemory& memory) : memory_(memory) {}

  // Host pointer of an access that is legal; throws EmulatorError (illegal address) else.
  uint8_t* access(uint64_t address, uint64_t num_bytes, Access access) {
    const bool is_near = last_ != nullptr && last_->contains(address, num_bytes);
    if (!is_near || !last_->check(address, num_bytes, access).empty())
      last_ = &memory_.find_allowed(address, num_bytes, access);
    return reinterpret_cast<uint8_t*>(address);
  }
  // Of the region around an address that access() allowed: whether a launch can only read it, its start, and the place
  // as text.
  bool is_read_only(uint64_t address) const;
  uint64_t base_of(uint64_t address) const;
  std::string describe(uint64_t address) const;

 private:
  const Region* region_of(uint64_t address) const {
    return last_ != nullptr && last_->contains(address, 1) ? last_ : memory_.find(address);
  }

  GlobalMemory& memory_;
  Region* last_ = nullptr;
};

}  // namespace opdeck::emu
