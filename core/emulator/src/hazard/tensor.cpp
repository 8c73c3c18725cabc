// SPDX-License-Identifier: Apache-2.0
// Tensor memory and the tensor cores. A granule of tensor memory is one column of 16 lanes.
#include <algorithm>

#include "../tensor/smem_desc.h"
#include "detector.h"

namespace opdeck::emu {
namespace {

constexpr uint32_t kGranuleLanes = 16;
constexpr uint32_t kGranulesPerColumn = TmemView::num_lanes / kGranuleLanes;

}  // namespace

void ClusterHazards::tmem_range(const Actor& actor, uint32_t rank, uint32_t lane, uint32_t num_lanes, uint32_t column,
                                uint32_t num_columns, bool writes) {
  if (num_columns == 0) return;
  check_allocation(actor, rank, column, num_columns);
  Shadow& shadow = ctas_[rank]->tmem;
  const uint32_t per_column = (num_lanes + kGranuleLanes - 1) / kGranuleLanes;
  const bool dense = per_column == kGranulesPerColumn;
  const size_t count = dense ? size_t{per_column} * num_columns : per_column;
  for (uint32_t c = column; c < column + (dense ? 1 : num_columns); ++c) {
    const size_t first = size_t{c} * kGranulesPerColumn + lane / kGranuleLanes;
    const Conflict conflict = writes ? shadow.write(first, count, actor) : shadow.read(first, count, actor);
    if (conflict) fail(conflict, actor, Memory::tmem, rank, writes);
  }
}

void ClusterHazards::tmem_access(const Actor& actor, uint32_t rank, const TmemAccess& access, uint32_t address, bool writes) {
  note(actor, uint64_t{address} << 32 | access.num_repeats << 4 | static_cast<uint32_t>(access.shape) << 1 |
                  static_cast<uint32_t>(writes));
  for (const uint32_t column : tmem_first_columns(access))
    tmem_range(actor, rank, tmem_lane(address), tmem_num_lanes(access.shape), tmem_column(address) + column,
               tmem_num_columns(access), writes);
}

// What a warp, or its operation of that time, does with tensor memory.
Actor ClusterHazards::tensor_actor(Warp& warp, Epoch now) {
  WarpState& s = state(warp);
  return Actor{now, &s.knows, true, false, site(warp)}.in_order_of(tensor_order(s));
}

void ClusterHazards::allocate_tmem(Warp& warp, uint32_t column, uint32_t num_columns) {
  CtaState& cta = *ctas_[warp.cta.rank];
  cta.tmem.forget(size_t{column} * kGranulesPerColumn, size_t{num_columns} * kGranulesPerColumn);
  const Epoch now = moment(warp);
  tensor_order(state(warp)).raise(now.agent(), now.time());
  std::fill_n(cta.allocations.begin() + column / TmemAllocator::kBlockColumns, num_columns / TmemAllocator::kBlockColumns,
              Touch{now, site(warp)});
}

void ClusterHazards::deallocate_tmem(Warp& warp, uint32_t column, uint32_t num_columns) {
  tmem_range(tensor_actor(warp, actor_of(warp).now), warp.cta.rank, 0, TmemView::num_lanes, column, num_columns, true);
}

// tcgen05.alloc of a CTA pair is one of both CTAs, so only the own CTA's is looked at.
void ClusterHazards::check_allocation(const Actor& actor, uint32_t rank, uint32_t column, uint32_t num_columns) const {
  if (rank != actor.site.rank()) return;
  const uint32_t end = (column + num_columns + TmemAllocator::kBlockColumns - 1) / TmemAllocator::kBlockColumns;
  for (uint32_t block = column / TmemAllocator::kBlockColumns; block < end; ++block) {
    const Touch& allocation = ctas_[rank]->allocations[block];
    if (!actor.is_after(allocation.epoch)) fail_allocation(actor, rank, column, allocation);
  }
}

void ClusterHazards::use_freed_tmem(const std::string& columns) const {
  fail("tmem-freed", columns + " were given back before (tcgen05.dealloc)");
}

void ClusterHazards::load_tmem(Warp& warp, const TmemAccess& access, uint32_t address) {
  WarpState& s = state(warp);
  const Epoch now = agents_.tick(s.tmem_load);
  tmem_access(tensor_actor(warp, now), warp.cta.rank, access, address, false);
  std::erase_if(s.tmem_loads, [&](const PendingLoad& load) { return load.op_idx == warp.pc; });
  s.tmem_loads.push_back({warp.pc, now});
}

void ClusterHazards::store_tmem(Warp& warp, const TmemAccess& access, uint32_t address) {
  tmem_access(tensor_actor(warp, agents_.tick(state(warp).tmem_store)), warp.cta.rank, access, address, true);
}

// Loads of a warp end in the order of issue.
void ClusterHazards::consume_tmem_load(Warp& warp, uint32_t load_op_idx) {
  WarpState& s = state(warp);
  const auto it = std::find_if(s.tmem_loads.begin(), s.tmem_loads.end(),
                               [&](const PendingLoad& load) { return load.op_idx == load_op_idx; });
  if (it == s.tmem_loads.end()) return;
  s.knows.learn(s.tmem_load, it->epoch.time());
  if (level_ != HazardLevel::strict) tensor_order(s).raise(s.tmem_load, it->epoch.time());
  s.tmem_loads.erase(s.tmem_loads.begin(), it + 1);
}

void ClusterHazards::wait_tmem_loads(Warp& warp) {
  WarpState& s = state(warp);
  s.knows.learn(s.tmem_load, agents_[s.tmem_load].time);
  tensor_order(s).raise(s.tmem_load, agents_[s.tmem_load].time);
  s.tmem_loads.clear();
}

void ClusterHazards::wait_tmem_stores(Warp& warp) {
  WarpState& s = state(warp);
  s.knows.learn(s.tmem_store, agents_[s.tmem_store].time);
  tensor_order(s).raise(s.tmem_store, agents_[s.tmem_store].time);
}

// The tensor pipe of a CTA (pair), which now knows what the issuing warp knows.
ClusterHazards::Pipe& ClusterHazards::pipe(Warp& warp, const Cta& first) {
  WarpState& s = state(warp);
  const auto [it, is_new] = pipes_.try_emplace(first.rank);
  Pipe& p = it->second;
  if (is_new) p.agent = agents_.find_or_add(AgentKind::tensor_pipe, first.rank, 0);
  p.knows.join(s.knows);
  seal(s);
  const Epoch now = agents_.now(p.agent);
  p.knows.learn(p.agent, now.time());
  p.order.join(tensor_order(s));
  p.order.raise(p.agent, now.time());
  return p;
}

void ClusterHazards::umma_tmem(const Actor& actor, const std::array<Cta*, 2>& ctas, const UmmaPlan& plan) {
  const UmmaOperands& operands = plan.operands;
  for (const UmmaTile& tile : plan.tiles) {
    const uint32_t rank = ctas[tile.cta_idx]->rank;
    if (operands.a_in_tmem)
      tmem_range(actor, rank, tile.first_lane, tile.num_rows, tmem_column(static_cast<uint32_t>(operands.a)), plan.a_columns,
                 false);
    const uint32_t d_column = tmem_column(operands.d_address);
    if (operands.accumulate) tmem_range(actor, rank, tile.first_lane, tile.num_rows, d_column, plan.tile_cols, false);
    tmem_range(actor, rank, tile.first_lane, tile.num_rows, d_column, plan.tile_cols, true);
  }
  for (uint32_t i = 0; i < operands.num_ctas; ++i) {
    tmem_range(actor, ctas[i]->rank, 0, TmemView::num_lanes, tmem_column(operands.sfa_address), plan.sfa_columns, false);
    tmem_range(actor, ctas[i]->rank, 0, TmemView::num_lanes, tmem_column(operands.sfb_address), plan.sfb_columns, false);
  }
}

void ClusterHazards::multiply(Warp& warp, const std::array<Cta*, 2>& ctas, const UmmaPlan& plan) {
  Pipe& p = pipe(warp, *ctas[0]);
  const Actor actor{agents_.now(p.agent), &p.knows, true, true, site(warp)};
  note(actor, mix_bits(plan.operands.b_descriptor) + mix_bits(plan.operands.a) + plan.operands.d_address);
  for (uint32_t i = 0; i < plan.operands.num_ctas; ++i) {
    const auto read = [&](uint32_t offset) { shared_range(actor, shared_address(ctas[i]->rank, offset), 16, false); };
    if (!plan.operands.a_in_tmem) for_each_a_piece(plan, read);
    for_each_b_piece(plan, read);
  }
  umma_tmem(actor.in_order_of(p.order), ctas, plan);
}

void ClusterHazards::copy_to_tmem(Warp& warp, const std::array<Cta*, 2>& ctas, const TmemCopy& copy) {
  Pipe& p = pipe(warp, *ctas[0]);
  const Actor actor{agents_.now(p.agent), &p.knows, true, true, site(warp)};
  note(actor, mix_bits(copy.source_descriptor) + copy.address);
  const TmemCopyExtent extent = tmem_copy_extent(copy);
  const SmemDescriptor source = decode_tcgen05_descriptor(copy.source_descriptor, launch_.program.target).value;
  for (Cta* cta : ctas) {
    if (cta == nullptr) continue;
    for_each_operand_piece(source, Major::k, {extent.num_rows, extent.row_bytes}, [&](uint32_t offset) {
      shared_range(actor, shared_address(cta->rank, offset), 16, false);
    });
    tmem_range(actor.in_order_of(p.order), cta->rank, 0, TmemView::num_lanes, tmem_column(copy.address), extent.num_columns, true);
  }
}

Signal ClusterHazards::commit_tensor(Warp& warp, const Cta& first, uint32_t signalled_ctas) {
  Pipe& p = pipe(warp, first);
  for (uint32_t rank = 0; rank < cluster_.num_ctas(); ++rank)
    if (rank != warp.cta.rank && (signalled_ctas >> rank & 1) != 0)
      touch_remote({agents_.now(p.agent), &p.knows, true, true, site(warp)}, rank);
  auto signal = std::make_shared<Knowledge>(p.knows);
  signal->tensor.join(p.order);
  seal(p.agent);
  return signal;
}

// All four warps take part: each must know of what is read.
void ClusterHazards::multiply_warpgroup(Warp& last, const WgmmaPlan& plan) {
  const uint32_t first_warp = last.warp_idx / 4 * 4;
  Knowledge knows = state(last).knows;
  const Epoch now = agents_.tick(state(last).wgmma.agent);
  for (uint32_t w = 0; w < 4; ++w) {
    Warp& warp = last.cta.warps[first_warp + w];
    knows.meet(state(warp).knows);
    hold_wgmma_registers(warp, now);
  }
  const Actor actor{now, &knows, true, true, site(last)};
  note(actor, mix_bits(plan.operands.b_descriptor) + plan.operands.a_descriptor);
  constexpr uint32_t kRows = 64, kBytes = 32;
  const auto read = [&](uint32_t offset) { shared_range(actor, shared_address(last.cta.rank, offset), 16, false); };
  const WgmmaOperands& operands = plan.operands;
  if (!operands.a_in_registers)
    for_each_operand_piece(plan.a_smem, operands.a_major, operand_extent(operands.a_major, kRows, kBytes, plan.k_elems), read);
  for_each_operand_piece(plan.b_smem, operands.b_major,
                         operand_extent(operands.b_major, operands.n_cols, kBytes, plan.k_elems), read);
}

void ClusterHazards::commit_wgmma(Warp& warp) {
  GroupStream& stream = state(warp).wgmma;
  stream.commit(agents_[stream.agent].time);
  seal(stream.agent);
}

void ClusterHazards::wait_wgmma(Warp& warp, uint32_t num_allowed) {
  WarpState& s = state(warp);
  s.retired_wgmma = std::max(s.retired_wgmma, s.wgmma.done_time(num_allowed));
  s.knows.learn(s.wgmma.agent, s.retired_wgmma);
}

}  // namespace opdeck::emu
