// SPDX-License-Identifier: Apache-2.0
// Copies of tensor boxes by the TMA unit: cp.async.bulk.tensor, cp.reduce.async.bulk.tensor and the prefetch.
// Source: PTX ISA, "Data Movement and Conversion Instructions: Tensor copy". The map and the box walk:
// tensor/tensormap.h. Reads of the source and writes of the destination happen when the schedule completes the copy.
// Limits: tile mode only; im2col, gather4, scatter4 and the cp_mask forms are refused.
#include <bit>
#include <cstring>

#include "../counters/count.h"
#include "../hazard/detector.h"
#include "../tensor/tensormap.h"
#include "async_copy.h"
#include "lanes.h"

namespace opdeck::emu {
namespace {

struct TensorCopyDetail {
  uint32_t rank = 0;
  AddressOperand map, shared, mbarrier;
  std::vector<uint32_t> coordinate_rows;
  bool multicast = false;
  uint32_t multicast_row = 0;
  bool pair_signal = false;  // .cta_group::2
  ReduceOp reduction = ReduceOp::add;
};
const TensorCopyDetail& detail_of(const Op& op) { return *static_cast<const TensorCopyDetail*>(op.detail); }

using Coordinates = std::array<int32_t, TensorMap::max_rank>;

struct Box {
  TensorMap map;
  Coordinates at{};
  uint32_t shared_address = 0;
};

// The map's 128 bytes through a generic address.
TensorMap read_tensor_map(Warp& warp, const TensorCopyDetail& detail, uint32_t lane) {
  const uint64_t address = warp.row<uint64_t>(detail.map.row)[lane] + static_cast<uint64_t>(detail.map.offset);
  check_alignment(address, 64);
  const uint8_t* const bytes = memory_pointer(warp, lane, {MemorySpace::generic, address, 128});
  if (ClusterHazards* hazards = hazards_of(warp);
      hazards != nullptr && space_of(address) == Space::global && !warp.launch.memory.is_read_only(address))
    hazards->use_tensor_map(warp, address);
  Expected<TensorMap> map = decode_tensor_map(bytes);
  if (!map.ok()) throw EmulatorError(Fault::illegal_instruction, "tensor map: " + map.error);
  if (map.value.rank != detail.rank)
    throw EmulatorError(Fault::illegal_instruction, "the tensor map has rank " + std::to_string(map.value.rank) +
                                                        ", the instruction " + std::to_string(detail.rank));
  return map.value;
}

Box read_box(Warp& warp, const TensorCopyDetail& detail, TensorCopy direction, uint32_t lane) {
  Box box;
  box.map = read_tensor_map(warp, detail, lane);
  for (uint32_t i = 0; i < detail.rank; ++i) box.at[i] = warp.row<int32_t>(detail.coordinate_rows[i])[lane];
  const Error error = check_coords(box.map, box.at.data(), direction);
  if (!error.empty()) throw EmulatorError(Fault::illegal_instruction, error);
  return box;
}

// The chip's tensor store is one instruction a warp: lanes that give the same operands store once. (A reduction is done
// for each lane: measured on an H200.)
uint32_t distinct_lanes(Warp& warp, const TensorCopyDetail& detail) {
  const auto same = [&](uint32_t x, uint32_t y) {
    bool equal = warp.row<uint64_t>(detail.map.row)[x] == warp.row<uint64_t>(detail.map.row)[y] &&
                 shared_operand(warp, detail.shared, x) == shared_operand(warp, detail.shared, y);
    for (const uint32_t row : detail.coordinate_rows) equal &= warp.row<int32_t>(row)[x] == warp.row<int32_t>(row)[y];
    return equal;
  };
  uint32_t distinct = 0;
  for_each_lane(warp.mask, [&](uint32_t lane) {
    bool is_new = true;
    for_each_lane(distinct, [&](uint32_t earlier) { is_new &= !same(earlier, lane); });
    distinct |= static_cast<uint32_t>(is_new) << lane;
  });
  return distinct;
}

void set_shared_address(Warp& warp, const TensorCopyDetail& detail, uint32_t lane, Box& box) {
  box.shared_address = shared_operand(warp, detail.shared, lane);
  check_alignment(box.shared_address, tensor_map_smem_alignment_bytes);
  warp.cta.cluster.shared_pointer(box.shared_address, box.map.box_bytes());
}

template <class Visit>
void for_each_run_inside(const Box& box, const Visit& visit) {
  for_each_run(box.map, box.at.data(), [&](const TileRun& run) {
    if (run.in_bounds) visit(run);
  });
}

uint64_t bytes_inside(const Box& box) {
  uint64_t num_bytes = 0;
  for_each_run_inside(box, [&](const TileRun& run) { num_bytes += run.global_bytes; });
  return num_bytes;
}

// One box from global memory into the shared memory of one CTA.
void load_box(GlobalView& memory, const Box& box, uint8_t* shared) {
  const bool padded = box.map.shared_bytes(16) != box.map.global_bytes(16);
  std::vector<uint8_t> expanded;
  const uint32_t offset = shared_offset(box.shared_address);
  for_each_run(box.map, box.at.data(), [&](const TileRun& run) {
    const uint8_t* source = nullptr;
    if (run.in_bounds) {
      source = memory.access(run.global_address, run.global_bytes, Access::read);
      if (padded) {
        expanded.resize(run.shared_bytes);
        expand_elems(box.map.type, source, run.num_elems, expanded.data());
        source = expanded.data();
      }
    }
    for_each_piece(box.map.swizzle, offset, run, [&](uint32_t address, uint32_t run_byte, uint32_t num_bytes) {
      if (source == nullptr)
        std::memset(shared + address, 0, num_bytes);
      else
        copy_piece(shared + address, source + run_byte, num_bytes);
    });
  });
}

Flow load_tensor(Warp& warp, const Op& op) {
  const TensorCopyDetail& detail = detail_of(op);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    Box box = read_box(warp, detail, TensorCopy::load, lane);
    set_shared_address(warp, detail, lane, box);
    const uint32_t mbarrier = shared_operand(warp, detail.mbarrier, lane);
    const uint32_t own_rank = shared_rank(box.shared_address);
    const uint32_t ctas = detail.multicast ? warp.row<uint16_t>(detail.multicast_row)[lane] : 1u << own_rank;
    if (ctas == 0 || ctas >> warp.cta.cluster.num_ctas() != 0)
      throw EmulatorError(Fault::illegal_instruction, "multicast mask " + std::to_string(ctas) + " for a cluster of " +
                                                          std::to_string(warp.cta.cluster.num_ctas()));
    if (!detail.multicast && !detail.pair_signal && shared_rank(mbarrier) != own_rank)
      throw EmulatorError(Fault::illegal_instruction, "the mbarrier is not in the CTA of the destination");
    Cluster& cluster = warp.cta.cluster;
    Launch& launch = warp.launch;
    const auto signal_address = [mbarrier, pair_signal = detail.pair_signal](uint32_t rank) {
      return shared_address(pair_signal ? (rank & ~1u) | (shared_rank(mbarrier) & 1) : rank, shared_offset(mbarrier));
    };
    if (OpTally* tally = tally_of(warp)) {
      tally->global_read_bytes += bytes_inside(box);
      count_shared_copies(warp, *tally, box.map.transaction_bytes(), ctas);
    }
    LoadSignals signals;
    if (ClusterHazards* hazards = hazards_of(warp))
      for_each_lane(ctas, [&](uint32_t rank) {
        const uint32_t target = shared_address(rank, shared_offset(box.shared_address));
        signals[rank] = hazards->load_bulk(warp, {target, box.map.box_bytes(), box.map.swizzle}, signal_address(rank));
        if (launch.memory.is_read_only(box.map.base)) return;
        for_each_run_inside(box, [&](const TileRun& run) {
          hazards->read_global_bulk(warp, signal_address(rank), run.global_address, run.global_bytes);
        });
      });
    submit_async(warp, AsyncQueue::kUnordered, [&cluster, &launch, box, ctas, signals, signal_address] {
      for_each_lane(ctas, [&](uint32_t rank) {
        load_box(launch.memory, box, cluster.ctas[rank]->shared());
        launch.counters.tma_load_bytes += box.map.transaction_bytes();
        complete_tx(cluster, signal_address(rank), box.map.transaction_bytes(), signals[rank]);
      });
      launch.signal();
    });
  });
  return Flow::next;
}

// The box as it lies in shared memory, unswizzled.
std::vector<uint8_t> gather_box(const Box& box, const uint8_t* shared) {
  std::vector<uint8_t> bytes(box.map.box_bytes());
  for_each_run(box.map, box.at.data(), [&](const TileRun& run) {
    for_each_piece(box.map.swizzle, shared_offset(box.shared_address), run,
                   [&](uint32_t address, uint32_t run_byte, uint32_t num_bytes) {
                     copy_piece(bytes.data() + run.smem_offset + run_byte, shared + address, num_bytes);
                   });
  });
  return bytes;
}

void store_box(Launch& launch, const Box& box, const std::vector<uint8_t>& bytes) {
  for_each_run(box.map, box.at.data(), [&](const TileRun& run) {
    if (!run.in_bounds) return;
    uint8_t* const target = launch.memory.access(run.global_address, run.global_bytes, Access::write);
    compact_elems(box.map.type, bytes.data() + run.smem_offset, run.num_elems, target);
    launch.counters.tma_store_bytes += run.global_bytes;
  });
}

void reduce_box(Launch& launch, ReduceOp reduction, const Box& box, const std::vector<uint8_t>& bytes) {
  for_each_run(box.map, box.at.data(), [&](const TileRun& run) {
    if (!run.in_bounds) return;
    uint8_t* const target = launch.memory.access(run.global_address, run.global_bytes, Access::read_write);
    reduce_elems(reduction, box.map.type, bytes.data() + run.smem_offset, run.num_elems, target);
    launch.counters.tma_store_bytes += run.global_bytes;
  });
}

template <bool reduces>
Flow store_tensor(Warp& warp, const Op& op) {
  const TensorCopyDetail& detail = detail_of(op);
  // A reduction is done once for each lane, even where all give the same operands (measured on an H200).
  for_each_lane(reduces ? warp.mask : distinct_lanes(warp, detail), [&](uint32_t lane) {
    auto box = std::make_shared<Box>(read_box(warp, detail, reduces ? TensorCopy::reduce : TensorCopy::store, lane));
    set_shared_address(warp, detail, lane, *box);
    if (reduces) {
      const Error error = check_reduction(detail.reduction, box->map.type);
      if (!error.empty()) throw EmulatorError(Fault::illegal_instruction, error);
    }
    const uint8_t* const shared = warp.cta.shared();
    if (shared_rank(box->shared_address) != warp.cta.rank)
      throw EmulatorError(Fault::illegal_address, "the source is not in the shared memory of the executing CTA");
    if (OpTally* tally = tally_of(warp)) {
      tally->global_write_bytes += bytes_inside(*box);
      tally->shared_read_bytes += box->map.transaction_bytes();
    }
    if (ClusterHazards* hazards = hazards_of(warp)) {
      hazards->store_bulk(warp, lane, {box->shared_address, box->map.box_bytes(), box->map.swizzle});
      for_each_run_inside(*box, [&](const TileRun& run) {
        hazards->write_global_bulk(warp, lane, run.global_address, run.global_bytes, reduces ? Site::kStrong : 0);
      });
    }
    auto bytes = std::make_shared<std::vector<uint8_t>>();
    Launch& launch = warp.launch;
    const ReduceOp reduction = detail.reduction;
    submit_group_copy(
        warp, BulkGroups::of(warp).bulk[lane], [box, bytes, shared] { *bytes = gather_box(*box, shared); },
        [box, bytes, &launch, reduction] {
          if (reduces)
            reduce_box(launch, reduction, *box, *bytes);
          else
            store_box(launch, *box, *bytes);
        });
  });
  return Flow::next;
}

Flow prefetch_tensor(Warp& warp, const Op& op) {
  for_each_lane(warp.mask, [&](uint32_t lane) { read_box(warp, detail_of(op), TensorCopy::load, lane); });
  return Flow::next;
}

uint32_t take_rank(Decoding& d) {
  return static_cast<uint32_t>(d.take_one_of({"1d", "2d", "3d", "4d", "5d"}, "dimension")) + 1;
}

// `[map, {coordinates}]`
void set_map_operand(Decoding& d, TensorCopyDetail& detail, const ptx::Operand& operand) {
  if (operand.kind != ptx::Operand::Kind::address || operand.items.size() != 2)
    d.malformed("a tensor operand must be [map, {coordinates}]");
  detail.map = d.address(operand);
  if (detail.map.bits != 64) d.malformed("a tensor map needs a 64-bit address");
  detail.coordinate_rows = d.source_list(operand.items[1], 32);
  if (detail.coordinate_rows.size() != detail.rank) d.malformed("the number of coordinates is not the dimension");
}

void take_mode(Decoding& d) { d.take("tile"); }

void decode_load(Decoding& d, TensorCopyDetail detail) {
  d.take_one_of({"global"}, "source");
  take_mode(d);
  d.take_one_of({"mbarrier::complete_tx::bytes"}, "completion");
  detail.multicast = d.take("multicast::cluster");
  bool hint = d.take("L2::cache_hint");
  if (d.take("cta_group::2"))
    detail.pair_signal = true;
  else
    d.take("cta_group::1");
  hint |= d.take("L2::cache_hint");
  d.require_operands(3u + detail.multicast + hint);
  detail.shared = d.address(size_t{0});
  set_map_operand(d, detail, d.operand(1));
  detail.mbarrier = d.address(2);
  if (detail.multicast) detail.multicast_row = d.source(3, 16);
  if (hint) d.source(3u + detail.multicast, 64);
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = &load_tensor;
}

void decode_store(Decoding& d, TensorCopyDetail detail) {
  d.take_one_of({"shared::cta"}, "source");
  take_mode(d);
  d.take_one_of({"bulk_group"}, "completion");
  const bool hint = d.take("L2::cache_hint");
  d.require_operands(2u + hint);
  set_map_operand(d, detail, d.operand(0));
  detail.shared = d.address(1);
  if (hint) d.source(2, 64);
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = &store_tensor<false>;
}

void decode_copy(Decoding& d) {
  TensorCopyDetail detail;
  detail.rank = take_rank(d);
  if (d.take("global")) return decode_store(d, std::move(detail));
  d.take_one_of({"shared::cluster", "shared::cta"}, "destination");
  decode_load(d, std::move(detail));
}

void decode_reduce(Decoding& d) {
  TensorCopyDetail detail;
  detail.rank = take_rank(d);
  d.take_one_of({"global"}, "destination");
  d.take_one_of({"shared::cta"}, "source");
  tell_communication(d, MemorySpace::global);
  detail.reduction =
      static_cast<ReduceOp>(d.take_one_of({"add", "min", "max", "inc", "dec", "and", "or", "xor"}, "operation"));
  take_mode(d);
  d.take_one_of({"bulk_group"}, "completion");
  const bool hint = d.take("L2::cache_hint");
  d.require_operands(2u + hint);
  set_map_operand(d, detail, d.operand(0));
  detail.shared = d.address(1);
  if (hint) d.source(2, 64);
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = &store_tensor<true>;
}

void decode_prefetch(Decoding& d) {
  TensorCopyDetail detail;
  detail.rank = take_rank(d);
  d.take_one_of({"L2"}, "level");
  d.take_one_of({"global"}, "source");
  take_mode(d);
  const bool hint = d.take("L2::cache_hint");
  d.require_operands(1u + hint);
  set_map_operand(d, detail, d.operand(0));
  if (hint) d.source(1, 64);
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = &prefetch_tensor;
}

}  // namespace

void add_tensor_copy_instructions(InstructionTable& table) {
  table["cp.async.bulk.tensor"] = {decode_copy, manual::kDataMovement};
  table["cp.reduce.async.bulk.tensor"] = {decode_reduce, manual::kDataMovement};
  table["cp.async.bulk.prefetch.tensor"] = {decode_prefetch, manual::kDataMovement};
}

}  // namespace opdeck::emu
