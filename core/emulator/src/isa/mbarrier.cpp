// SPDX-License-Identifier: Apache-2.0
// The mbarrier instructions. Source: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
// Semantics of the object are in machine/mbarrier.h and machine/cta.cpp.
// Limits: 32-bit generic addresses are not supported.
#include <bit>

#include "../counters/count.h"
#include "../hazard/detector.h"
#include "lanes.h"
#include "memory_access.h"

namespace opdeck::emu {
namespace {

// Operands of all forms.
struct MbarrierDetail {
  AddressOperand address;
  bool is_generic = false;
  bool own_cta_only = true;
  bool has_state = false;  // arrive: a state to be written; test_wait: a state to compare with
  uint32_t state_row = 0;
  bool has_count = false;
  uint32_t count_row = 0;
  uint32_t tx_row = 0;
  uint32_t parity_row = 0;
  Semantics semantics = Semantics::synchronizing;
};
const MbarrierDetail& detail_of(const Op& op) { return *static_cast<const MbarrierDetail*>(op.detail); }

// The shared address in one lane.
uint32_t barrier_address(Warp& warp, const MbarrierDetail& detail, uint32_t lane) {
  uint64_t address = detail.address.bits == 32 ? warp.row<uint32_t>(detail.address.row)[lane]
                                               : warp.row<uint64_t>(detail.address.row)[lane];
  address += static_cast<uint64_t>(detail.address.offset);
  if (detail.is_generic) {
    if (space_of(address) != Space::shared)
      throw EmulatorError(Fault::illegal_address, "the mbarrier's generic address is not in shared memory");
    address -= kSharedWindow;
  }
  const uint32_t shared = static_cast<uint32_t>(address);
  if (detail.own_cta_only && shared_rank(shared) != warp.cta.rank)
    throw EmulatorError(Fault::illegal_address, "the mbarrier belongs to another CTA of the cluster");
  return shared;
}

// Lanes that give the same operands initialise once.
Flow initialize(Warp& warp, const Op& op) {
  const MbarrierDetail& detail = detail_of(op);
  uint32_t last_address = 0, last_count = 0;
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint32_t address = barrier_address(warp, detail, lane), count = warp.row<uint32_t>(detail.count_row)[lane];
    if (count != 0 && address == last_address && count == last_count) return;
    last_address = address;
    last_count = count;
    warp.cta.cluster.init_mbarrier(address, count);
    if (ClusterHazards* hazards = hazards_of(warp)) hazards->init_mbarrier(warp, address);
  });
  return Flow::next;
}
Flow invalidate(Warp& warp, const Op& op) {
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint32_t address = barrier_address(warp, detail_of(op), lane);
    warp.cta.cluster.invalidate_mbarrier(address);
    if (ClusterHazards* hazards = hazards_of(warp)) hazards->invalidate_mbarrier(warp, address);
  });
  return Flow::next;
}

// Lanes mostly arrive at one mbarrier: what the warp passes on is the same for all.
void release(Warp& warp, uint32_t address, Semantics semantics, uint32_t& released) {
  if (ClusterHazards* hazards = hazards_of(warp); hazards != nullptr && address != released)
    hazards->arrive_mbarrier(warp, address, semantics);
  released = address;
}

enum class Arrival : uint8_t { arrive, arrive_expect, drop, drop_expect };
template <Arrival kind>
Flow arrive(Warp& warp, const Op& op) {
  const MbarrierDetail& detail = detail_of(op);
  constexpr bool expects = kind == Arrival::arrive_expect || kind == Arrival::drop_expect;
  constexpr bool drops = kind == Arrival::drop || kind == Arrival::drop_expect;
  uint32_t released = 0;
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint32_t address = barrier_address(warp, detail, lane);
    const uint32_t count = detail.has_count ? warp.row<uint32_t>(detail.count_row)[lane] : 1;
    const int32_t bytes = expects ? static_cast<int32_t>(warp.row<uint32_t>(detail.tx_row)[lane]) : 0;
    Cluster& cluster = warp.cta.cluster;
    cluster.read_mbarrier(address);  // throws when there is none
    release(warp, address, detail.semantics, released);
    const uint64_t state =
        drops ? cluster.arrive_drop_mbarrier(address, count, bytes) : cluster.arrive_mbarrier(address, count, bytes);
    if (detail.has_state) warp.row<uint64_t>(detail.state_row)[lane] = state;
  });
  return Flow::next;
}

// Undefined in PTX where it would complete the phase: an error here.
Flow arrive_without_completing(Warp& warp, const Op& op) {
  const MbarrierDetail& detail = detail_of(op);
  uint32_t released = 0;
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint32_t address = barrier_address(warp, detail, lane), count = warp.row<uint32_t>(detail.count_row)[lane];
    if (warp.cta.cluster.read_mbarrier(address).pending <= count)
      throw EmulatorError(Fault::illegal_instruction, "mbarrier.arrive.noComplete would complete the phase");
    release(warp, address, detail.semantics, released);
    const uint64_t state = warp.cta.cluster.arrive_mbarrier(address, count, 0);
    warp.row<uint64_t>(detail.state_row)[lane] = state;
  });
  return Flow::next;
}

Flow pending_count(Warp& warp, const Op& op) {
  return map_lanes<uint32_t, uint64_t>(warp, op, [](uint64_t state) { return Mbarrier::unpack(state).pending; });
}

template <int32_t sign>
Flow change_tx(Warp& warp, const Op& op) {
  const MbarrierDetail& detail = detail_of(op);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const int32_t bytes = static_cast<int32_t>(warp.row<uint32_t>(detail.tx_row)[lane]);
    const uint32_t address = barrier_address(warp, detail, lane);
    warp.cta.cluster.read_mbarrier(address);  // throws when there is none
    if (ClusterHazards* hazards = hazards_of(warp)) hazards->change_mbarrier_tx(warp, address);
    warp.cta.cluster.expect_mbarrier_tx(address, sign * bytes);
  });
  return Flow::next;
}

// The lanes whose phase is complete. Lanes mostly wait for one phase: it is looked up once.
uint32_t lanes_done(Warp& warp, const MbarrierDetail& detail, uint32_t& waiting_address, uint32_t& waiting_parity) {
  uint32_t done = 0, last_address = 0, last_parity = 0;  // 0 is no shared address
  bool last_done = false;
  ClusterHazards* const hazards = hazards_of(warp);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint32_t address = barrier_address(warp, detail, lane);
    const uint32_t parity = detail.has_state ? Mbarrier::unpack(warp.row<uint64_t>(detail.state_row)[lane]).phase
                                             : warp.row<uint32_t>(detail.parity_row)[lane];
    if (address != last_address || parity != last_parity) {
      if (parity > 1) throw EmulatorError(Fault::illegal_instruction, "phase parity " + std::to_string(parity));
      last_done = warp.cta.cluster.read_mbarrier(address).parity_done(parity);
      last_address = address;
      last_parity = parity;
      if (last_done && hazards != nullptr) hazards->wait_mbarrier(warp, address, parity, detail.semantics);
    }
    if (last_done) {
      done |= 1u << lane;
    } else {
      waiting_address = address;
      waiting_parity = parity;
    }
  });
  return done;
}

Flow answer(Warp& warp, const Op& op, uint32_t done) {
  if (OpTally* tally = tally_of(warp)) tally->false_polls += static_cast<uint64_t>(done != warp.mask);
  set_predicate(warp, op.dst, done);
  return Flow::next;
}

Flow test_wait(Warp& warp, const Op& op) {
  // Kept for the report of a livelock.
  return answer(warp, op, lanes_done(warp, detail_of(op), warp.wait.address, warp.wait.parity));
}

// Potentially blocking: blocks until the phase completes, or until the scheduler lets it return false.
Flow try_wait(Warp& warp, const Op& op) {
  uint32_t address = 0, parity = 0;
  const uint32_t done = lanes_done(warp, detail_of(op), address, parity);
  if (done != warp.mask && !warp.try_wait_fails()) return warp.block(WaitKind::mbarrier, address, parity, true);
  return answer(warp, op, done);
}

Semantics take_semantics(Decoding& d) {
  const bool is_relaxed = d.take("relaxed");
  if (is_relaxed || d.take("acquire") || d.take("release")) d.take_one_of({"cta", "cluster"}, "scope");
  return is_relaxed ? Semantics::relaxed : Semantics::synchronizing;
}
void take_space(Decoding& d, MbarrierDetail& detail) {
  if (d.take("shared") || d.take("shared::cta")) return;
  detail.own_cta_only = false;
  if (!d.take("shared::cluster")) detail.is_generic = true;
}
void take_width(Decoding& d) { d.take_type_of({Type::b64}); }

void finish(Decoding& d, MbarrierDetail detail, Execute execute) {
  if (detail.is_generic && detail.address.bits != 64) d.unsupported("generic addresses of 32 bits");
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = execute;
}

void decode_init(Decoding& d) {
  MbarrierDetail detail;
  take_space(d, detail);
  take_width(d);
  d.require_operands(2);
  detail.address = d.address(size_t{0});
  detail.count_row = d.source(1, 32);
  finish(d, detail, &initialize);
}
void decode_inval(Decoding& d) {
  MbarrierDetail detail;
  take_space(d, detail);
  take_width(d);
  d.require_operands(1);
  detail.address = d.address(size_t{0});
  finish(d, detail, &invalidate);
}

void decode_arrive_without_completing(Decoding& d) {
  MbarrierDetail detail;
  detail.semantics = take_semantics(d);
  take_space(d, detail);
  take_width(d);
  d.require_operands(3);
  detail.state_row = d.destination(0, 64);
  detail.address = d.address(1);
  detail.count_row = d.source(2, 32);
  finish(d, detail, &arrive_without_completing);
}

void decode_pending_count(Decoding& d) {
  take_width(d);
  d.require_operands(2);
  d.op.dst = d.destination(0, 32);
  d.op.a = d.source(1, 64);
  d.op.execute = &pending_count;
}

template <bool drops>
void decode_arrive(Decoding& d) {
  if (!drops && d.take("noComplete")) return decode_arrive_without_completing(d);
  MbarrierDetail detail;
  const bool expects = d.take("expect_tx");
  detail.semantics = take_semantics(d);
  take_space(d, detail);
  take_width(d);
  size_t i = 0;
  // A first operand that is no address is the state; arrivals at another CTA have none.
  if (d.operand(0).kind != ptx::Operand::Kind::address) {
    detail.has_state = d.operand(0).kind == ptx::Operand::Kind::reg;
    if (detail.has_state) detail.state_row = d.destination(0, 64);
    i = 1;
  }
  d.require_operands(i + 1 + (expects ? 1 : 0), i + 2);
  detail.address = d.address(i);
  if (expects) detail.tx_row = d.source(i + 1, 32);
  detail.has_count = !expects && d.num_operands() == i + 2;
  if (detail.has_count) detail.count_row = d.source(i + 1, 32);
  finish(d, detail,
         drops ? (expects ? &arrive<Arrival::drop_expect> : &arrive<Arrival::drop>)
               : (expects ? &arrive<Arrival::arrive_expect> : &arrive<Arrival::arrive>));
}

template <int32_t sign>
void decode_tx(Decoding& d) {
  MbarrierDetail detail;
  take_semantics(d);
  take_space(d, detail);
  take_semantics(d);  // ptxas takes it on either side of the space
  take_width(d);
  d.require_operands(2);
  detail.address = d.address(size_t{0});
  detail.tx_row = d.source(1, 32);
  finish(d, detail, &change_tx<sign>);
}

template <bool may_block>
void decode_wait(Decoding& d) {
  MbarrierDetail detail;
  const bool by_parity = d.take("parity");
  detail.semantics = take_semantics(d);
  take_space(d, detail);
  take_width(d);
  d.require_operands(3, may_block ? 4 : 3);  // the fourth is a time limit
  d.op.dst = d.destination(0, 1);
  detail.address = d.address(1);
  if (by_parity) {
    detail.parity_row = d.source(2, 32);
  } else {
    detail.has_state = true;
    detail.state_row = d.source(2, 64);
  }
  if (d.num_operands() == 4) d.source(3, 32);
  finish(d, detail, may_block ? &try_wait : &test_wait);
}

}  // namespace

void add_mbarrier_instructions(InstructionTable& table) {
  table["mbarrier.init"] = {decode_init, manual::kSynchronization};
  table["mbarrier.inval"] = {decode_inval, manual::kSynchronization};
  table["mbarrier.arrive"] = {decode_arrive<false>, manual::kSynchronization};
  table["mbarrier.arrive_drop"] = {decode_arrive<true>, manual::kSynchronization};
  table["mbarrier.expect_tx"] = {decode_tx<1>, manual::kSynchronization};
  table["mbarrier.complete_tx"] = {decode_tx<-1>, manual::kSynchronization};
  table["mbarrier.pending_count"] = {decode_pending_count, manual::kSynchronization};
  table["mbarrier.test_wait"] = {decode_wait<false>, manual::kSynchronization};
  table["mbarrier.try_wait"] = {decode_wait<true>, manual::kSynchronization};
}

}  // namespace opdeck::emu
