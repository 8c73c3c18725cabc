// SPDX-License-Identifier: Apache-2.0
// Barriers of a CTA (bar, barrier) and of a cluster (barrier.cluster).
// Source: PTX ISA, "Parallel Synchronization and Communication Instructions: bar, barrier; barrier.cluster".
// A warp's arrival counts all its threads. Limits: barrier.red is not supported.
#include <bit>

#include "../hazard/detector.h"
#include "../machine/cta.h"
#include "decode.h"
#include "lanes.h"

namespace opdeck::emu {
namespace {

struct BarrierOperands {
  uint32_t barrier = 0;
  uint32_t num_threads = 0;  // 0: all threads of the CTA
};

BarrierOperands read_operands(Warp& warp, const Op& op) {
  BarrierOperands operands{uniform<uint32_t>(warp, op.a, "barrier numbers"),
                           op.immediate != 0 ? uniform<uint32_t>(warp, op.b, "thread counts") : 0};
  if (operands.barrier >= warp.cta.named_barriers.size())
    throw EmulatorError(Fault::illegal_instruction,
                        "barrier " + std::to_string(operands.barrier) + " is not in 0 .. 15");
  if (op.immediate != 0 && (operands.num_threads == 0 || operands.num_threads % kWarpLanes != 0))
    throw EmulatorError(Fault::illegal_instruction, "barrier thread count " + std::to_string(operands.num_threads) +
                                                        " is not a positive multiple of 32");
  return operands;
}

Flow synchronize(Warp& warp, const Op& op) {
  if (!warp.aligned_but_exited()) return Flow::blocked;
  const BarrierOperands operands = read_operands(warp, op);
  const NamedBarrier& barrier = warp.cta.named_barriers[operands.barrier];
  if (!warp.barrier_arrived) {
    warp.barrier_ticket = barrier.generation;
    if (ClusterHazards* hazards = hazards_of(warp)) hazards->arrive_barrier(warp, operands.barrier, barrier.generation);
    const uint32_t threads =
        operands.num_threads != 0 ? kWarpLanes : static_cast<uint32_t>(std::popcount(warp.live_lanes()));
    warp.cta.arrive_named_barrier(operands.barrier, threads, operands.num_threads);
    warp.barrier_arrived = true;
  }
  if (barrier.generation == warp.barrier_ticket) return warp.block(WaitKind::named_barrier, operands.barrier);
  warp.barrier_arrived = false;
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->wait_barrier(warp);
  return Flow::next;
}

Flow arrive(Warp& warp, const Op& op) {
  if (!warp.aligned_but_exited()) return Flow::blocked;
  const BarrierOperands operands = read_operands(warp, op);
  if (ClusterHazards* hazards = hazards_of(warp))
    hazards->arrive_barrier(warp, operands.barrier, warp.cta.named_barriers[operands.barrier].generation);
  warp.cta.arrive_named_barrier(operands.barrier, kWarpLanes, operands.num_threads);
  return Flow::next;
}

void decode_barrier(Decoding& d) {
  d.take("cta");
  const bool sync = d.take_one_of({"sync", "arrive"}, "action") == 0;
  d.take("aligned");
  d.require_operands(sync ? 1 : 2, 2);
  d.op.a = d.source(0, 32);
  if (d.num_operands() == 2) {
    d.op.b = d.source(1, 32);
    d.op.immediate = 1;
  }
  d.op.execute = sync ? &synchronize : &arrive;
}

template <Semantics semantics>
Flow cluster_arrive(Warp& warp, const Op&) {
  if (!warp.aligned_but_exited()) return Flow::blocked;
  if (warp.cluster_arrived)
    throw EmulatorError(Fault::illegal_instruction, "barrier.cluster.arrive twice without a wait");
  warp.cluster_arrived = true;
  warp.cluster_ticket = warp.cta.cluster.cluster_generation;
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->arrive_cluster_barrier(warp, warp.cluster_ticket, semantics);
  warp.cta.cluster.arrive_cluster_barrier(static_cast<uint32_t>(std::popcount(warp.live_lanes())));
  return Flow::next;
}

Flow cluster_wait(Warp& warp, const Op&) {
  if (!warp.aligned_but_exited()) return Flow::blocked;
  if (!warp.cluster_arrived) throw EmulatorError(Fault::illegal_instruction, "barrier.cluster.wait without an arrive");
  if (warp.cta.cluster.cluster_generation == warp.cluster_ticket) return warp.block(WaitKind::cluster_barrier);
  warp.cluster_arrived = false;
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->wait_cluster_barrier(warp, warp.cluster_ticket);
  return Flow::next;
}

void decode_cluster_barrier(Decoding& d) {
  const bool arrives = d.take_one_of({"arrive", "wait"}, "action") == 0;
  const bool is_relaxed = arrives && d.take("relaxed");
  if (!is_relaxed) d.take(arrives ? "release" : "acquire");
  d.take("aligned");
  d.require_operands(0);
  d.op.execute = !arrives     ? &cluster_wait
                 : is_relaxed ? &cluster_arrive<Semantics::relaxed>
                              : &cluster_arrive<Semantics::synchronizing>;
}

}  // namespace

void add_barrier_instructions(InstructionTable& table) {
  table["bar"] = {decode_barrier, manual::kSynchronization};
  table["barrier"] = {decode_barrier, manual::kSynchronization};
  table["barrier.cluster"] = {decode_cluster_barrier,
                              manual::kSynchronization};
}

}  // namespace opdeck::emu
