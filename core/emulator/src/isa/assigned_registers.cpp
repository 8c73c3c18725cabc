// SPDX-License-Identifier: Apache-2.0
#include "assigned_registers.h"

#include <algorithm>

#include "control_flow.h"

namespace opdeck::emu {
namespace {

// The bytes of registers that a thread has certainly written.
class ByteSet {
 public:
  ByteSet(size_t num_bytes, uint64_t fill) : words_((num_bytes + 63) / 64, fill) {}
  bool has(uint32_t byte) const { return (words_[byte / 64] >> byte % 64 & 1) != 0; }
  bool has_all(const ByteFlow::Write& write) const {
    return std::all_of(write.sources.begin(), write.sources.end(),
                       [&](uint32_t byte) { return byte == ByteFlow::kDefined || has(byte); });
  }
  void put(uint32_t byte, bool is_member) {
    const uint64_t bit = uint64_t{1} << byte % 64;
    words_[byte / 64] = is_member ? words_[byte / 64] | bit : words_[byte / 64] & ~bit;
  }
  // Keeps what both have; returns whether that is less.
  bool meet(const ByteSet& other) {
    bool shrank = false;
    for (size_t i = 0; i < words_.size(); ++i) {
      shrank |= (words_[i] & ~other.words_[i]) != 0;
      words_[i] &= other.words_[i];
    }
    return shrank;
  }

 private:
  std::vector<uint64_t> words_;
};

class Analysis {
 public:
  Analysis(const ptx::Kernel& kernel, const RegisterBytes& bytes, const std::vector<RegisterUses>& uses,
           const std::vector<ByteFlow>& flows)
      : kernel_(kernel), bytes_(bytes), uses_(uses), flows_(flows), blocks_(find_basic_blocks(kernel)) {}

  UnprovenBytes run() {
    find_entries();
    result_.followed.assign(bytes_.count(), false);
    result_.uses.resize(kernel_.instructions.size());
    for (size_t b = 0; b < blocks_.size(); ++b) {
      if (!reached_[b]) continue;
      ByteSet assigned = entries_[b];
      for (uint32_t i = blocks_[b].first; i < blocks_[b].end; ++i) {
        add_use(i, assigned);
        step(i, assigned);
      }
    }
    follow_sources();
    return std::move(result_);
  }

 private:
  // What has certainly been written at the start of each block: the largest solution, found from above.
  void find_entries() {
    entries_.assign(blocks_.size(), ByteSet(bytes_.count(), ~uint64_t{0}));
    reached_.assign(blocks_.size(), false);
    if (blocks_.empty()) return;
    entries_[0] = ByteSet(bytes_.count(), 0);
    reached_[0] = true;
    std::vector<uint32_t> to_visit{0};
    while (!to_visit.empty()) {
      const uint32_t b = to_visit.back();
      to_visit.pop_back();
      ByteSet assigned = entries_[b];
      for (uint32_t i = blocks_[b].first; i < blocks_[b].end; ++i) step(i, assigned);
      for (const uint32_t next : blocks_[b].successors) {
        const bool is_new = !reached_[next];
        reached_[next] = true;
        if (entries_[next].meet(assigned) || is_new) to_visit.push_back(next);
      }
    }
  }

  void step(uint32_t i, ByteSet& assigned) {
    const std::vector<ByteFlow::Write>& writes = flows_[i].writes;
    defines_.clear();  // all of them before the first changes: an instruction may write what it reads
    for (const ByteFlow::Write& write : writes) defines_.push_back(assigned.has_all(write));
    // Under a guard, the lanes that do not execute keep what they had.
    const bool has_guard = kernel_.instructions[i].has_guard;
    for (size_t w = 0; w < writes.size(); ++w)
      assigned.put(writes[w].byte, defines_[w] && (!has_guard || assigned.has(writes[w].byte)));
  }

  void add_use(uint32_t i, const ByteSet& assigned) {
    const auto add = [&](std::vector<uint32_t>& list, uint32_t byte) {
      if (assigned.has(byte)) return;
      list.push_back(byte);
      result_.followed[byte] = true;
    };
    for (const uint32_t byte : flows_[i].used) add(result_.uses[i].used, byte);
    for (const uint32_t reg : uses_[i].accumulators)
      for (uint32_t byte = bytes_.first(reg); byte < bytes_.end(reg); ++byte) add(result_.uses[i].accumulators, byte);
    for (const ByteFlow::Write& write : flows_[i].writes)
      if (!assigned.has_all(write)) unproven_writes_.push_back(write);
  }

  // Where a followed byte was moved from others, those are followed too.
  void follow_sources() {
    bool grew = true;
    while (grew) {
      grew = false;
      for (const ByteFlow::Write& write : unproven_writes_) {
        if (!result_.followed[write.byte]) continue;
        for (const uint32_t source : write.sources) {
          if (source == ByteFlow::kDefined || result_.followed[source]) continue;
          result_.followed[source] = true;
          grew = true;
        }
      }
    }
  }

  const ptx::Kernel& kernel_;
  const RegisterBytes& bytes_;
  const std::vector<RegisterUses>& uses_;
  const std::vector<ByteFlow>& flows_;
  const std::vector<BasicBlock> blocks_;
  std::vector<ByteSet> entries_;
  std::vector<bool> reached_, defines_;
  std::vector<ByteFlow::Write> unproven_writes_;
  UnprovenBytes result_;
};

}  // namespace

UnprovenBytes find_unproven_bytes(const ptx::Kernel& kernel, const RegisterBytes& bytes,
                                  const std::vector<RegisterUses>& uses, const std::vector<ByteFlow>& flows) {
  return Analysis(kernel, bytes, uses, flows).run();
}

}  // namespace opdeck::emu
