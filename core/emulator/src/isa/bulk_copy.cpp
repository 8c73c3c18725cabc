// SPDX-License-Identifier: Apache-2.0
// Copies of contiguous bytes: cp.async.bulk, cp.reduce.async.bulk, cp.async (per thread), their groups and waits.
// Source: PTX ISA, "Data Movement and Conversion Instructions: Bulk copy; Non-bulk copy".
// Limits: .cp_mask, .ignore_oob and cp.reduce into shared memory are not supported.
#include <cstring>

#include "../counters/count.h"
#include "../hazard/detector.h"
#include "../tensor/tensormap.h"
#include "async_copy.h"
#include "lanes.h"

namespace opdeck::emu {
namespace {

struct BulkDetail {
  AddressOperand destination, source, mbarrier;
  uint32_t size_row = 0;
  bool multicast = false;
  uint32_t multicast_row = 0;
  ReduceOp reduction = ReduceOp::add;
  TensorMapType type = TensorMapType::u32;  // of a reduction's elements
  uint32_t elem_bytes = 4;
};
const BulkDetail& detail_of(const Op& op) { return *static_cast<const BulkDetail*>(op.detail); }

uint64_t global_operand(Warp& warp, const AddressOperand& operand, uint32_t lane) {
  return warp.row<uint64_t>(operand.row)[lane] + static_cast<uint64_t>(operand.offset);
}

uint32_t read_size(Warp& warp, const BulkDetail& detail, uint32_t lane) {
  const uint32_t num_bytes = warp.row<uint32_t>(detail.size_row)[lane];
  require_multiple("size", num_bytes, 16);
  return num_bytes;
}

// Global or shared memory into shared memory, signalling an mbarrier.
Flow load_from_global(Warp& warp, const Op& op) {
  const BulkDetail& detail = detail_of(op);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint32_t num_bytes = read_size(warp, detail, lane);
    const uint32_t target = shared_operand(warp, detail.destination, lane);
    const uint32_t mbarrier = shared_operand(warp, detail.mbarrier, lane);
    const uint64_t source = global_operand(warp, detail.source, lane);
    check_alignment(target, 16);
    check_alignment(source, 16);
    Cluster& cluster = warp.cta.cluster;
    cluster.shared_pointer(target, num_bytes);
    const uint32_t ctas = detail.multicast ? warp.row<uint16_t>(detail.multicast_row)[lane] : 1u << shared_rank(target);
    if (ctas == 0 || ctas >> cluster.num_ctas() != 0)
      throw EmulatorError(Fault::illegal_instruction, "multicast mask " + std::to_string(ctas));
    Launch& launch = warp.launch;
    const auto signal_address = [mbarrier](uint32_t rank) { return shared_address(rank, shared_offset(mbarrier)); };
    if (OpTally* tally = tally_of(warp)) {
      tally->global_read_bytes += num_bytes;
      count_shared_copies(warp, *tally, num_bytes, ctas);
    }
    LoadSignals signals;
    if (ClusterHazards* hazards = hazards_of(warp))
      for_each_lane(ctas, [&](uint32_t rank) {
        signals[rank] =
            hazards->load_bulk(warp, {shared_address(rank, shared_offset(target)), num_bytes}, signal_address(rank));
        if (!launch.memory.is_read_only(source))
          hazards->read_global_bulk(warp, signal_address(rank), source, num_bytes);
      });
    submit_async(
        warp, AsyncQueue::kUnordered, [&cluster, &launch, num_bytes, target, source, ctas, signals, signal_address] {
          for_each_lane(ctas, [&](uint32_t rank) {
            uint8_t* const pointer = cluster.shared_pointer(shared_address(rank, shared_offset(target)), num_bytes);
            if (num_bytes != 0) std::memcpy(pointer, launch.memory.access(source, num_bytes, Access::read), num_bytes);
            launch.counters.tma_load_bytes += num_bytes;
            complete_tx(cluster, signal_address(rank), num_bytes, signals[rank]);
          });
          launch.signal();
        });
  });
  return Flow::next;
}

Flow copy_to_cluster(Warp& warp, const Op& op) {
  const BulkDetail& detail = detail_of(op);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint32_t num_bytes = read_size(warp, detail, lane);
    const uint32_t target = shared_operand(warp, detail.destination, lane);
    const uint32_t source = shared_operand(warp, detail.source, lane);
    const uint32_t mbarrier = shared_operand(warp, detail.mbarrier, lane);
    check_alignment(target, 16);
    check_alignment(source, 16);
    const uint8_t* const from = shared_cta_pointer(warp, source, num_bytes);
    Cluster& cluster = warp.cta.cluster;
    uint8_t* const to = cluster.shared_pointer(target, num_bytes);
    if (OpTally* tally = tally_of(warp)) {
      tally->shared_read_bytes += num_bytes;
      count_shared_copies(warp, *tally, num_bytes, 1u << shared_rank(target));
    }
    Launch& launch = warp.launch;
    Signal signal;
    if (ClusterHazards* hazards = hazards_of(warp))
      signal = hazards->copy_bulk(warp, {source, num_bytes}, target, mbarrier);
    submit_async(warp, AsyncQueue::kUnordered, [&cluster, &launch, from, to, num_bytes, mbarrier, signal] {
      std::memmove(to, from, num_bytes);
      complete_tx(cluster, mbarrier, num_bytes, signal);
      launch.signal();
    });
  });
  return Flow::next;
}

// The chip's bulk store is one instruction a warp: lanes that give the same operands store once. (A reduction is done
// for each lane.)
uint32_t distinct_lanes(Warp& warp, const BulkDetail& detail) {
  uint32_t distinct = 0;
  for_each_lane(warp.mask, [&](uint32_t lane) {
    bool is_new = true;
    for_each_lane(distinct, [&](uint32_t earlier) {
      is_new &= global_operand(warp, detail.destination, lane) != global_operand(warp, detail.destination, earlier) ||
                shared_operand(warp, detail.source, lane) != shared_operand(warp, detail.source, earlier);
    });
    distinct |= static_cast<uint32_t>(is_new) << lane;
  });
  return distinct;
}

// Shared to global memory, counted in a bulk group; with or without a reduction.
template <bool reduces>
Flow store_to_global(Warp& warp, const Op& op) {
  const BulkDetail& detail = detail_of(op);
  for_each_lane(reduces ? warp.mask : distinct_lanes(warp, detail), [&](uint32_t lane) {
    const uint32_t num_bytes = read_size(warp, detail, lane);
    const uint64_t target = global_operand(warp, detail.destination, lane);
    const uint32_t source = shared_operand(warp, detail.source, lane);
    check_alignment(target, 16);
    check_alignment(source, 16);
    const uint8_t* const from = shared_cta_pointer(warp, source, num_bytes);
    if (OpTally* tally = tally_of(warp)) {
      tally->global_write_bytes += num_bytes;
      tally->shared_read_bytes += num_bytes;
    }
    if (ClusterHazards* hazards = hazards_of(warp)) {
      hazards->store_bulk(warp, lane, {source, num_bytes});
      hazards->write_global_bulk(warp, lane, target, num_bytes, reduces ? Site::kStrong : 0);
    }
    auto bytes = std::make_shared<std::vector<uint8_t>>();
    Launch& launch = warp.launch;
    submit_group_copy(
        warp, BulkGroups::of(warp).bulk[lane], [bytes, from, num_bytes] { bytes->assign(from, from + num_bytes); },
        [bytes, target, &launch, &detail] {
          if (bytes->empty()) return;
          uint8_t* const to = launch.memory.access(target, bytes->size(), reduces ? Access::read_write : Access::write);
          if (reduces)
            reduce_elems(detail.reduction, detail.type, bytes->data(),
                         static_cast<uint32_t>(bytes->size()) / detail.elem_bytes, to);
          else
            std::memcpy(to, bytes->data(), bytes->size());
          launch.counters.tma_store_bytes += bytes->size();
        });
  });
  return Flow::next;
}

void decode_load_forms(Decoding& d) {
  BulkDetail detail;
  const bool from_global = d.take_one_of({"global", "shared::cta"}, "source") == 0;
  d.take_one_of({"mbarrier::complete_tx::bytes"}, "completion");
  detail.multicast = d.take("multicast::cluster");
  const bool hint = d.take("L2::cache_hint");
  if (!from_global && (detail.multicast || hint)) d.unsupported("modifiers of a copy between CTAs");
  d.require_operands(4u + detail.multicast + hint);
  detail.destination = d.address(size_t{0});
  detail.source = d.address(1);
  detail.size_row = d.source(2, 32);
  detail.mbarrier = d.address(3);
  if (detail.multicast) detail.multicast_row = d.source(4, 16);
  if (hint) d.source(4u + detail.multicast, 64);
  if (from_global && detail.source.bits != 64) d.malformed("a global address needs 64 bits");
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = from_global ? &load_from_global : &copy_to_cluster;
}

void decode_bulk(Decoding& d) {
  if (!d.take("global")) {
    d.take_one_of({"shared::cluster", "shared::cta"}, "destination");
    return decode_load_forms(d);
  }
  BulkDetail detail;
  d.take_one_of({"shared::cta"}, "source");
  d.take_one_of({"bulk_group"}, "completion");
  const bool hint = d.take("L2::cache_hint");
  d.require_operands(3u + hint);
  detail.destination = d.address(size_t{0});
  detail.source = d.address(1);
  detail.size_row = d.source(2, 32);
  if (hint) d.source(3, 64);
  if (detail.destination.bits != 64) d.malformed("a global address needs 64 bits");
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = &store_to_global<false>;
}

void set_reduction_type(Decoding& d, BulkDetail& detail) {
  struct Entry {
    Type type;
    TensorMapType elems;
  };
  constexpr Entry kTypes[] = {{Type::u32, TensorMapType::u32}, {Type::s32, TensorMapType::s32},
                              {Type::u64, TensorMapType::u64}, {Type::s64, TensorMapType::s64},
                              {Type::f16, TensorMapType::f16}, {Type::bf16, TensorMapType::bf16},
                              {Type::f32, TensorMapType::f32}, {Type::f64, TensorMapType::f64},
                              {Type::b32, TensorMapType::u32}, {Type::b64, TensorMapType::u64}};
  const Type type = d.take_type();
  for (const Entry& entry : kTypes) {
    if (entry.type != type) continue;
    detail.type = entry.elems;
    detail.elem_bytes = type_bits(type) / 8;
    const Error error = check_reduction(detail.reduction, detail.type);
    if (!error.empty()) d.unsupported(error);
    return;
  }
  d.unsupported("type ." + std::string(type_name(type)));
}

void decode_bulk_reduce(Decoding& d) {
  BulkDetail detail;
  d.take_one_of({"global"}, "destination");
  d.take_one_of({"shared::cta"}, "source");
  d.take_one_of({"bulk_group"}, "completion");
  const bool hint = d.take("L2::cache_hint");
  tell_communication(d, MemorySpace::global);
  detail.reduction =
      static_cast<ReduceOp>(d.take_one_of({"add", "min", "max", "inc", "dec", "and", "or", "xor"}, "operation"));
  const bool noftz = d.take("noftz");
  set_reduction_type(d, detail);
  const bool half = detail.type == TensorMapType::f16 || detail.type == TensorMapType::bf16;
  if (half && detail.reduction == ReduceOp::add && !noftz) d.unsupported(".add of halves without .noftz");
  d.require_operands(3u + hint);
  detail.destination = d.address(size_t{0});
  detail.source = d.address(1);
  detail.size_row = d.source(2, 32);
  if (hint) d.source(3, 64);
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = &store_to_global<true>;
}

void decode_bulk_prefetch(Decoding& d) {
  d.take_one_of({"L2"}, "level");
  d.take_one_of({"global"}, "source");
  const bool hint = d.take("L2::cache_hint");
  d.require_operands(2u + hint);
  d.address(size_t{0});
  d.source(1, 32);
  if (hint) d.source(2, 64);
  d.op.execute = +[](Warp&, const Op&) { return Flow::next; };
}

// The hazard checks have one stream of bulk groups a lane, and one of cp.async groups a warp.
template <bool is_bulk>
void tell_commit(Warp& warp) {
  ClusterHazards* const hazards = hazards_of(warp);
  if (hazards == nullptr) return;
  if (!is_bulk) return hazards->commit_thread_copies(warp);
  for_each_lane(warp.mask, [&](uint32_t lane) { hazards->commit_bulk(warp, lane); });
}
template <bool is_bulk>
void tell_wait(Warp& warp, uint32_t num_allowed, GroupPhase phase) {
  ClusterHazards* const hazards = hazards_of(warp);
  if (hazards == nullptr) return;
  if (!is_bulk) return hazards->wait_thread_copies(warp, num_allowed);
  for_each_lane(warp.mask, [&](uint32_t lane) { hazards->wait_bulk(warp, lane, num_allowed, phase); });
}

template <auto queues>
Flow commit_group(Warp& warp, const Op&) {
  for_each_lane(warp.mask, [&](uint32_t lane) { (BulkGroups::of(warp).*queues)[lane].commit(); });
  tell_commit<queues == &BulkGroups::bulk>(warp);
  return Flow::next;
}
template <auto queues, GroupPhase phase>
Flow wait_group(Warp& warp, const Op& op) {
  if (!warp.bulk_groups) return Flow::next;
  bool done = true;
  for_each_lane(warp.mask, [&](uint32_t lane) {
    done &= (warp.bulk_groups.get()->*queues)[lane].done(static_cast<uint32_t>(op.immediate), phase);
  });
  if (!done) return warp.block(WaitKind::bulk_group);
  tell_wait<queues == &BulkGroups::bulk>(warp, static_cast<uint32_t>(op.immediate), phase);
  return Flow::next;
}

void decode_bulk_commit(Decoding& d) {
  d.require_operands(0);
  d.op.execute = &commit_group<&BulkGroups::bulk>;
}
void decode_bulk_wait(Decoding& d) {
  const bool read = d.take("read");
  d.require_operands(1);
  d.op.immediate = d.immediate(0);
  d.op.execute = read ? &wait_group<&BulkGroups::bulk, GroupPhase::source_read>
                      : &wait_group<&BulkGroups::bulk, GroupPhase::complete>;
}

// cp.async: 4, 8 or 16 bytes a thread, zero-filled behind src-size or where the predicate `ignore-src` holds.
struct ThreadCopyDetail {
  AddressOperand destination, source;
  uint32_t num_bytes = 0;
  bool has_size = false;
  uint32_t size_row = 0;
  bool has_ignore = false;
  uint32_t ignore_row = 0;
};

Flow copy_per_thread(Warp& warp, const Op& op) {
  const auto& detail = *static_cast<const ThreadCopyDetail*>(op.detail);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint32_t target = shared_operand(warp, detail.destination, lane);
    const uint64_t source = global_operand(warp, detail.source, lane);
    check_alignment(target, detail.num_bytes);
    check_alignment(source, detail.num_bytes);
    uint32_t source_bytes = detail.has_size ? warp.row<uint32_t>(detail.size_row)[lane] : detail.num_bytes;
    if (source_bytes > detail.num_bytes) throw EmulatorError(Fault::illegal_instruction, "src-size exceeds cp-size");
    if (detail.has_ignore && (warp.predicate(detail.ignore_row) >> lane & 1) != 0) source_bytes = 0;
    uint8_t* const to = shared_cta_pointer(warp, target, detail.num_bytes);
    if (OpTally* tally = tally_of(warp)) {
      tally->global_read_bytes += source_bytes;
      tally->shared_write_bytes += detail.num_bytes;
    }
    if (ClusterHazards* hazards = hazards_of(warp)) hazards->copy_thread(warp, target, detail.num_bytes);
    const std::shared_ptr<BulkGroup> group = BulkGroups::of(warp).per_thread[lane].open();
    ++group->pending_writes;
    const std::shared_ptr<CopyBatch> batch = BulkGroups::of(warp).open_batch(lane);
    ++batch->pending;
    Launch& launch = warp.launch;
    const uint32_t num_bytes = detail.num_bytes;
    submit_async(warp, AsyncQueue::kUnordered, [&launch, group, batch, to, source, source_bytes, num_bytes] {
      std::memset(to, 0, num_bytes);
      if (source_bytes != 0) std::memcpy(to, launch.memory.access(source, source_bytes, Access::read), source_bytes);
      --group->pending_writes;
      batch->finish_one();
      launch.signal();
    });
  });
  return Flow::next;
}

void decode_cp_async(Decoding& d) {
  ThreadCopyDetail detail;
  d.take_one_of({"ca", "cg"}, "cache operator");
  d.take("shared") || d.take("shared::cta") || (d.unsupported("destination ." + std::string(d.next_modifier())), true);
  d.take_one_of({"global"}, "source");
  const bool hint = d.take("L2::cache_hint");
  for (const std::string_view m : {"L2::64B", "L2::128B", "L2::256B"}) d.take(m);
  d.require_operands(3u + hint, 4u + hint);
  detail.destination = d.address(size_t{0});
  detail.source = d.address(1);
  detail.num_bytes = static_cast<uint32_t>(d.immediate(2));
  if (detail.num_bytes != 4 && detail.num_bytes != 8 && detail.num_bytes != 16)
    d.malformed("cp-size must be 4, 8 or 16");
  if (d.num_operands() == 4u + hint) {
    const ptx::Operand& extra = d.operand(3);
    const bool is_predicate = extra.kind == ptx::Operand::Kind::reg && d.context.register_bits(extra.reg) == 1;
    if (is_predicate) {
      detail.has_ignore = true;
      detail.ignore_row = d.source(3, 1);
    } else {
      detail.has_size = true;
      detail.size_row = d.source(3, 32);
    }
  }
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = &copy_per_thread;
}

// An arrival at an mbarrier when all earlier cp.async of the lane are done. Without .noinc it is one more than the
// phase was to have.
template <bool increments>
Flow arrive_when_copied(Warp& warp, const Op& op) {
  const auto& address = *static_cast<const AddressOperand*>(op.detail);
  Cluster& cluster = warp.cta.cluster;
  Launch& launch = warp.launch;
  Signal signal;
  uint32_t tracked = 0;
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint32_t mbarrier = shared_operand(warp, address, lane);
    shared_cta_pointer(warp, mbarrier, 8);
    cluster.read_mbarrier(mbarrier);  // throws when there is none
    if (increments) cluster.add_mbarrier_arrival(mbarrier);
    if (ClusterHazards* hazards = hazards_of(warp); hazards != nullptr && (!signal || mbarrier != tracked))
      signal = hazards->track_thread_copies(warp, mbarrier);
    tracked = mbarrier;
    const auto arrive = [&cluster, &launch, mbarrier, signal] {
      if (signal) cluster.hazards->signal_mbarrier(mbarrier, signal);
      cluster.arrive_mbarrier(mbarrier, 1, 0);
      launch.signal();
    };
    std::shared_ptr<CopyBatch>& batch = BulkGroups::of(warp).batches[lane];
    if (!batch || batch->pending == 0) return submit_async(warp, AsyncQueue::kUnordered, arrive);
    const auto next = std::make_shared<CopyBatch>();
    next->pending = 1;
    batch->on_done = [arrive, next] {
      arrive();
      next->finish_one();
    };
    batch = next;
  });
  return Flow::next;
}
void decode_arrive_when_copied(Decoding& d) {
  const bool increments = !d.take("noinc");
  d.take("shared") || d.take("shared::cta") || (d.unsupported("generic addresses"), true);
  d.take_type_of({Type::b64});
  d.require_operands(1);
  d.op.detail = d.keep(d.address(size_t{0}));
  d.op.execute = increments ? &arrive_when_copied<true> : &arrive_when_copied<false>;
}

void decode_commit(Decoding& d) {
  d.require_operands(0);
  d.op.execute = &commit_group<&BulkGroups::per_thread>;
}
void decode_wait(Decoding& d) {
  d.require_operands(1);
  d.op.immediate = d.immediate(0);
  d.op.execute = &wait_group<&BulkGroups::per_thread, GroupPhase::complete>;
}
// All groups, the open one too.
Flow wait_all(Warp& warp, const Op& op) {
  for_each_lane(warp.mask, [&](uint32_t lane) { BulkGroups::of(warp).per_thread[lane].commit(); });
  tell_commit<false>(warp);
  return wait_group<&BulkGroups::per_thread, GroupPhase::complete>(warp, op);
}
void decode_wait_all(Decoding& d) {
  d.require_operands(0);
  d.op.execute = &wait_all;
}

}  // namespace

void add_bulk_copy_instructions(InstructionTable& table) {
  table["cp.async.bulk"] = {decode_bulk, manual::kDataMovement};
  table["cp.reduce.async.bulk"] = {decode_bulk_reduce, manual::kDataMovement};
  table["cp.async.bulk.prefetch"] = {decode_bulk_prefetch, manual::kDataMovement};
  table["cp.async.bulk.commit_group"] = {decode_bulk_commit, manual::kDataMovement};
  table["cp.async.bulk.wait_group"] = {decode_bulk_wait, manual::kDataMovement};
  table["cp.async"] = {decode_cp_async, manual::kDataMovement};
  table["cp.async.mbarrier.arrive"] = {decode_arrive_when_copied, manual::kSynchronization};
  table["cp.async.commit_group"] = {decode_commit, manual::kDataMovement};
  table["cp.async.wait_group"] = {decode_wait, manual::kDataMovement};
  table["cp.async.wait_all"] = {decode_wait_all, manual::kDataMovement};
}

}  // namespace opdeck::emu
