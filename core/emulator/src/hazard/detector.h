// SPDX-License-Identifier: Apache-2.0
// Finds hazards in the run of one cluster: accesses that no synchronisation orders, whatever the schedule at hand made of
// them. Made by machine/cta.cpp where the session's options ask for hazards; called by the instructions (src/isa) when they
// issue. Reports are thrown as EmulatorError; the scheduler puts kernel, CTA, warp and line in front.
//
// Model. Every agent (agent.h) has a clock. A warp knows what it did and what the barriers it waited on passed to it; an
// asynchronous operation knows what its issuer knew; a completion (mbarrier, wait_group, tcgen05.wait) passes it on.
// Two accesses of one location, one of them a write, must be ordered by that knowledge. The async proxy must besides have a
// fence.proxy.async between a generic write and itself; a generic read before an asynchronous write needs none, since
// an mbarrier orders it. Tensor memory has an order of its own (fences.cpp), which tcgen05.fence makes; only the strict level
// asks for those fences. Source: PTX ISA, "Memory Consistency Model", "Async proxy", "Memory Consistency Model for 5th
// generation of TensorCore operations".
// Limits: the lanes of a warp are one agent. cp.async groups are a warp's, not a lane's.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "../machine/bulk_groups.h"
#include "../machine/cta.h"
#include "../tensor/swizzle.h"
#include "../tensor/tmem_layout.h"
#include "../tensor/umma.h"
#include "../tensor/wgmma.h"
#include "shadow.h"

namespace opdeck::emu {

// on: what NVIDIA's own kernels keep to. strict: the letter of the PTX ISA.
enum class HazardLevel : int32_t {
  off = OPDECK_EMU_HAZARDS_OFF,
  on = OPDECK_EMU_HAZARDS_ON,
  strict = OPDECK_EMU_HAZARDS_STRICT
};

// Of an arrival or a wait. A relaxed one orders executions, but no accesses of memory unless a fence stands before (behind) it.
enum class Semantics : uint8_t { synchronizing, relaxed };

// reduction: an atomic that returns nothing.
enum class AccessMode : uint8_t { read, write, strong_read, strong_write, atomic, reduction };

// What a completion passes to those who wait for it. Captured when the operation is issued.
using Signal = std::shared_ptr<const Knowledge>;

// A part of shared memory as a bulk copy sees it.
struct SharedBox {
  uint32_t address = 0, num_bytes = 0;
  Swizzle swizzle = Swizzle::none;
};

class ClusterHazards {
 public:
  ClusterHazards(Launch& launch, Cluster& cluster);
  // After the last warp has exited: what a CTA must not leave behind.
  void finish();
  uint64_t fingerprint() const { return fingerprint_; }

  // ---- generic proxy (detector.cpp)
  void access_shared(Warp& warp, uint32_t address, uint32_t num_bytes, AccessMode mode);
  // Weak accesses of the executing lanes, `num_bytes` wide, at offsets in their own CTA's shared memory.
  using LaneOffsets = std::array<uint32_t, kWarpLanes>;
  void read_shared(Warp& warp, const LaneOffsets& offsets, uint32_t num_bytes) { shared_lanes(warp, offsets, num_bytes, false); }
  void write_shared(Warp& warp, const LaneOffsets& offsets, uint32_t num_bytes) { shared_lanes(warp, offsets, num_bytes, true); }

  // ---- fences (fences.cpp)
  void fence_async_proxy(Warp& warp);
  void fence_mbarrier_init(Warp& warp);
  void fence_memory(Warp& warp);           // sc, acq_rel, membar
  void fence_before_thread_sync(Warp& warp);  // of tcgen05
  void fence_after_thread_sync(Warp& warp);

  // ---- global memory (global_access.cpp)
  void access_global(Warp& warp, const GlobalRange& range, AccessMode mode);
  void read_global_bulk(Warp& warp, uint32_t mbarrier, uint64_t address, uint64_t num_bytes);  // behind its load_bulk
  // Behind its store_bulk; flags: Site::kStrong for a reduction.
  void write_global_bulk(Warp& warp, uint32_t lane, uint64_t address, uint64_t num_bytes, uint32_t flags);

  // ---- tensor maps that kernels write (tensor_maps.cpp)
  void release_tensor_maps(Warp& warp);
  void copy_tensor_map(Warp& warp, uint64_t address);  // tensormap.cp_fenceproxy: written, and released
  void acquire_tensor_map(Warp& warp, uint64_t address);
  void use_tensor_map(Warp& warp, uint64_t address);

  // ---- registers (unproven_registers.cpp), by their bytes in Program::followed_bytes
  void use_registers(Warp& warp, const std::vector<uint32_t>& bytes, uint32_t lanes) const;
  void use_accumulators(Warp& warp) const;  // of the instruction at hand, which adds to them
  void write_registers(Warp& warp, const std::vector<FollowedWrite>& writes, uint32_t lanes);

  // ---- barriers (sync.cpp)
  void init_mbarrier(Warp& warp, uint32_t address);
  void invalidate_mbarrier(Warp& warp, uint32_t address);
  void arrive_mbarrier(Warp& warp, uint32_t address, Semantics semantics);  // call before the arrival is counted
  void signal_mbarrier(uint32_t address, const Signal& signal);  // the same of an asynchronous operation
  void wait_mbarrier(Warp& warp, uint32_t address, uint32_t parity, Semantics semantics);  // when the phase is complete
  void change_mbarrier_tx(Warp& warp, uint32_t address);  // expect_tx and complete_tx; call before they are counted
  void use_mbarrier(Warp& warp, uint32_t address);  // an asynchronous operation will signal it
  void arrive_barrier(Warp& warp, uint32_t barrier_idx, uint64_t generation);
  void wait_barrier(Warp& warp);  // at which it arrived last
  void arrive_cluster_barrier(Warp& warp, uint64_t generation, Semantics semantics);
  void wait_cluster_barrier(Warp& warp, uint64_t generation);

  // ---- bulk copies (bulk.cpp)
  Signal load_bulk(Warp& warp, const SharedBox& box, uint32_t mbarrier);
  // The response of clusterlaunchcontrol. Strict: reads of the one before must have passed a proxy fence, too.
  Signal load_response(Warp& warp, const SharedBox& box, uint32_t mbarrier);
  Signal copy_bulk(Warp& warp, const SharedBox& from, uint32_t to, uint32_t mbarrier);
  void store_bulk(Warp& warp, uint32_t lane, const SharedBox& box);
  void copy_thread(Warp& warp, uint32_t address, uint32_t num_bytes);
  void commit_bulk(Warp& warp, uint32_t lane);
  void wait_bulk(Warp& warp, uint32_t lane, uint32_t num_allowed, GroupPhase phase);
  Signal track_thread_copies(Warp& warp, uint32_t mbarrier);  // what an mbarrier passes on when they are done
  void commit_thread_copies(Warp& warp);
  void wait_thread_copies(Warp& warp, uint32_t num_allowed);

  // ---- tensor memory and tensor cores (tensor.cpp)
  void allocate_tmem(Warp& warp, uint32_t column, uint32_t num_columns);
  void deallocate_tmem(Warp& warp, uint32_t column, uint32_t num_columns);
  [[noreturn]] void use_freed_tmem(const std::string& columns) const;
  void load_tmem(Warp& warp, const TmemAccess& access, uint32_t address);
  void store_tmem(Warp& warp, const TmemAccess& access, uint32_t address);
  void consume_tmem_load(Warp& warp, uint32_t load_op_idx);  // a register it wrote is read: it has ended
  void wait_tmem_loads(Warp& warp);
  void wait_tmem_stores(Warp& warp);
  void multiply(Warp& warp, const std::array<Cta*, 2>& ctas, const UmmaPlan& plan);
  void copy_to_tmem(Warp& warp, const std::array<Cta*, 2>& ctas, const TmemCopy& copy);
  Signal commit_tensor(Warp& warp, const Cta& first, uint32_t signalled_ctas);
  void multiply_warpgroup(Warp& last, const WgmmaPlan& plan);
  void check_wgmma_registers(Warp& warp);  // before each warp takes part in it
  void use_wgmma_registers(Warp& warp, const WgmmaRegisterUser& user);
  void fence_wgmma(Warp& warp);
  void commit_wgmma(Warp& warp);
  void wait_wgmma(Warp& warp, uint32_t num_allowed);

 private:
  // The groups of asynchronous operations of one agent, each by the time of its last operation.
  struct GroupStream {
    AgentId agent = 0;
    AgentId writer = 0;  // bulk stores: of global memory, at the same times
    std::vector<uint32_t> ends;  // of all: a wait may allow any number of them
    void commit(uint32_t time) { ends.push_back(time); }
    // The time up to which all is done when at most `num_allowed` groups are not.
    uint32_t done_time(uint32_t num_allowed) const {
      return ends.size() > num_allowed ? ends[ends.size() - num_allowed - 1] : 0;
    }
  };
  struct PendingLoad {
    uint32_t op_idx;
    Epoch epoch;
  };
  struct WgmmaRegister {
    uint32_t in_flight = 0;          // time of the last wgmma that has it as an accumulator or as a part of A
    uint32_t used_before_fence = 0;  // the wgmma.fence that would be the next when another instruction used it
    Site site;                       // of that wgmma
    bool is_accumulator = false;
  };
  struct WarpState {
    AgentId agent = 0, mbarrier_init = 0, tmem_load = 0, tmem_store = 0;
    Knowledge knows;
    Knowledge released, acquirable;  // by the last fence before a relaxed arrival; by the first behind a relaxed wait
    VectorClock tensor_order;        // strict: the operations of tcgen05 that its next ones come after
    std::shared_ptr<const Knowledge> barrier;  // what it last arrived at passes on
    std::vector<PendingLoad> tmem_loads;
    std::map<uint32_t, GroupStream> bulk;  // by lane
    GroupStream thread_copies, wgmma;
    std::vector<WgmmaRegister> wgmma_registers;  // by place in Program::wgmma_registers
    uint32_t retired_wgmma = 0;                  // time of the last wgmma that a wait_group of the warp has retired
    uint32_t next_wgmma_fence = 1;
    std::vector<uint32_t> written_bytes;  // the lanes that have written each of Program::followed_bytes
  };
  // What the arrivals of the last generation of a named barrier pass on. Warps that have not come out of an earlier one
  // keep that.
  struct BarrierPoint {
    uint64_t generation = 0;
    std::shared_ptr<Knowledge> passed;
  };
  struct SyncPoint {
    std::array<uint64_t, 2> generations{};
    std::array<Knowledge, 2> passed;
    Knowledge& released(uint64_t generation);  // what its arrivals pass on
    const Knowledge& of(uint64_t generation) const { return passed[generation & 1]; }
  };
  struct MbarrierState {
    SyncPoint sync;
    uint64_t generation = 0;
    Epoch init, init_fence;
    Site init_site;
    std::vector<Touch> waits;  // that found the phase before the one in progress complete: the last of each warp
    VectorClock relaxed;       // what those knew who took part in the phase without passing it on
  };
  struct Pipe {
    AgentId agent;
    Knowledge knows;
    VectorClock order;  // the operations of tcgen05 that its next ones come after
  };
  // A fence.proxy.tensormap acquire of one map by one warp: what it makes the tensormap proxy see there.
  struct MapAcquire {
    Epoch epoch;
    VectorClock released;
    ClusterSet clusters;
  };
  struct CtaState {
    Shadow shared, tmem;
    std::array<Touch, TmemAllocator::kNumBlocks> allocations;  // of tensor memory
    std::array<BarrierPoint, 16> barriers;
    std::map<AgentId, Touch> touches;  // of its shared memory, by agents of other CTAs: the last of each
  };
  enum class Memory : uint8_t { shared, tmem };

  WarpState& state(const Warp& warp) { return warps_[warp.cta.rank * num_warps_ + warp.warp_idx]; }
  Site site(const Warp& warp, uint32_t flags = 0) const { return {warp.pc, warp.warp_idx, warp.cta.rank, flags}; }
  Actor actor_of(Warp& warp, uint32_t flags = 0);
  void seal(AgentId agent) { agents_[agent].sealed = true; }
  void seal(WarpState& s) {
    seal(s.agent);
    s.knows.is_hashed = false;
  }
  void note(const Actor& actor, uint64_t where);
  const VectorClock& tensor_order(const WarpState& s) const {
    return level_ == HazardLevel::strict ? s.tensor_order : s.knows.tensor;
  }
  VectorClock& tensor_order(WarpState& s) { return level_ == HazardLevel::strict ? s.tensor_order : s.knows.tensor; }
  void fence_own_mbarriers(WarpState& s);
  void release(WarpState& s, Knowledge& passed, Semantics semantics);
  void acquire(WarpState& s, const Knowledge& passed, Semantics semantics);

  void shared_lanes(Warp& warp, const LaneOffsets& offsets, uint32_t num_bytes, bool writes);
  void shared_range(const Actor& actor, uint32_t address, uint32_t num_bytes, bool writes);
  void shared_box(const Actor& actor, const SharedBox& box, bool writes);
  Actor tensor_actor(Warp& warp, Epoch now);
  void check_allocation(const Actor& actor, uint32_t rank, uint32_t column, uint32_t num_columns) const;
  void tmem_range(const Actor& actor, uint32_t rank, uint32_t lane, uint32_t num_lanes, uint32_t column,
                  uint32_t num_columns, bool writes);
  void tmem_access(const Actor& actor, uint32_t rank, const TmemAccess& access, uint32_t address, bool writes);
  void umma_tmem(const Actor& actor, const std::array<Cta*, 2>& ctas, const UmmaPlan& plan);
  void touch_remote(const Actor& actor, uint32_t rank);
  GroupStream& bulk_stream(Warp& warp, uint32_t lane);
  void acquire_shared_flag(Warp& warp, uint32_t address, AccessMode mode);
  void release_shared_flag(Warp& warp, uint32_t address, AccessMode mode);
  void acquire_global_flag(Warp& warp, uint64_t address);
  void release_global_flag(Warp& warp, uint64_t address);
  bool is_after(const Actor& actor, const GlobalTouch& other) const;
  Conflict::Why against_global_write(const GlobalTouch& write, const Actor& actor) const;
  Conflict::Why against_global_writes(const GlobalTouch& write, uint64_t at, const GlobalRange& range, const Actor& actor) const;
  void read_global(const Actor& actor, const GlobalRange& range);
  void write_global(const Actor& actor, const GlobalRange& range);
  bool is_acquired(const Actor& actor, const GlobalTouch& write, uint64_t map_address) const;
  void check_exit_of_copies(const Knowledge& everything) const;
  void check_exit_of_peers() const;
  void check_register_counts() const;
  void check_barriers_at_exit() const;
  Pipe& pipe(Warp& warp, const Cta& first);
  Epoch moment(Warp& warp);
  void check_waits(uint32_t address, const MbarrierState& m) const;
  MbarrierState& mbarrier(const Knowledge& knows, uint32_t address);
  MbarrierState& fenced_mbarrier(const Knowledge& knows, uint32_t address);
  MbarrierState& advance_mbarrier(uint32_t address);

  // ---- report.cpp
  [[noreturn]] void fail(const Conflict& conflict, const Actor& actor, Memory memory, uint32_t rank, bool writes) const;
  [[noreturn]] void fail_allocation(const Actor& actor, uint32_t rank, uint32_t column, const Touch& allocation) const;
  std::string conflict_kind(const Conflict& conflict, const Actor& actor, Memory memory, uint32_t rank) const;
  std::string place_text(Memory memory, uint32_t rank, size_t cell_idx) const;
  std::string describe(Epoch epoch, Site site) const;
  std::string cta_text(uint32_t rank) const;
  [[noreturn]] void fail(const std::string& kind, const std::string& text) const;
  [[noreturn]] void fail_wgmma_register(const std::string& kind, uint32_t place, const std::string& text) const;
  void hold_wgmma_registers(Warp& warp, Epoch now);
  [[noreturn]] void fail_global(const Conflict& conflict, const GlobalTouch& other, uint64_t address, bool writes) const;
  std::string describe(const GlobalTouch& other) const;

  Launch& launch_;
  Cluster& cluster_;
  HazardLevel level_;
  AgentTable agents_;
  uint32_t num_warps_;
  uint32_t granule_bytes_;
  std::vector<WarpState> warps_;
  std::vector<std::unique_ptr<CtaState>> ctas_;
  std::unordered_map<uint32_t, MbarrierState> mbarriers_;
  std::map<uint32_t, Pipe> pipes_;  // by the rank of the first CTA
  SyncPoint cluster_barrier_;
  std::unordered_map<uint32_t, Knowledge> shared_flags_;  // by address
  std::unordered_map<uint64_t, std::map<AgentId, MapAcquire>> acquired_maps_;  // by address and warp: the last of each
  uint32_t cluster_idx_ = 0;
  ClusterSet earlier_clusters_;  // that this one is ordered after
  uint64_t fingerprint_ = 0;
};

// NULL where the session does not ask for hazards.
inline ClusterHazards* hazards_of(const Warp& warp) { return warp.cta.cluster.hazards.get(); }

}  // namespace opdeck::emu
