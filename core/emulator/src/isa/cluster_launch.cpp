// SPDX-License-Identifier: Apache-2.0
// clusterlaunchcontrol: a running cluster takes over the work of one that has not started.
// Source: PTX ISA, "Parallel Synchronization and Communication Instructions: clusterlaunchcontrol".
// The 16-byte response is opaque in PTX; here: first CTA id x, y, z and a flag in the last word.
#include <cstring>

#include "async_copy.h"
#include "lanes.h"

namespace opdeck::emu {
namespace {

constexpr uint32_t kResponseBytes = 16;

struct Response {
  uint32_t first_cta[3] = {};
  uint32_t is_canceled = 0;
};

struct CancelDetail {
  AddressOperand response, mbarrier;
  bool multicast = false;
};

Response cancel_next(Launch& launch) {
  Response response;
  const auto number = launch.grid.clusters.take();
  if (!number) return response;
  const auto index = launch.grid.cluster_index(*number);
  for (size_t i = 0; i < 3; ++i) response.first_cta[i] = index[i] * launch.shape.cluster[i];
  response.is_canceled = 1;
  return response;
}

Flow try_cancel(Warp& warp, const Op& op) {
  const auto& detail = *static_cast<const CancelDetail*>(op.detail);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint32_t target = shared_operand(warp, detail.response, lane);
    const uint32_t mbarrier = shared_operand(warp, detail.mbarrier, lane);
    check_alignment(target, kResponseBytes);
    shared_cta_pointer(warp, target, kResponseBytes);
    Cluster& cluster = warp.cta.cluster;
    Launch& launch = warp.launch;
    const uint32_t ctas = detail.multicast ? (1u << cluster.num_ctas()) - 1 : 1u << shared_rank(target);
    LoadSignals signals;
    if (ClusterHazards* hazards = hazards_of(warp))
      for_each_lane(ctas, [&](uint32_t rank) {
        signals[rank] = hazards->load_response(warp, {shared_address(rank, shared_offset(target)), kResponseBytes},
                                               shared_address(rank, shared_offset(mbarrier)));
      });
    submit_async(warp, AsyncQueue::kUnordered, [&cluster, &launch, target, mbarrier, ctas, signals] {
      const Response response = cancel_next(launch);
      for_each_lane(ctas, [&](uint32_t rank) {
        std::memcpy(cluster.shared_pointer(shared_address(rank, shared_offset(target)), kResponseBytes), &response,
                    kResponseBytes);
        complete_tx(cluster, shared_address(rank, shared_offset(mbarrier)), kResponseBytes, signals[rank]);
      });
      launch.signal();
    });
  });
  return Flow::next;
}

void decode_try_cancel(Decoding& d) {
  d.require_target({Target::sm_100a, Target::sm_103a});
  CancelDetail detail;
  d.take_one_of({"async"}, "modifier");
  d.take("shared::cta");
  d.take_one_of({"mbarrier::complete_tx::bytes"}, "completion");
  detail.multicast = d.take("multicast::cluster::all");
  d.take_type_of({Type::b128});
  d.require_operands(2);
  detail.response = d.address(size_t{0});
  detail.mbarrier = d.address(1);
  d.context.program.clusters_communicate = true;
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = &try_cancel;
}

Flow is_canceled(Warp& warp, const Op& op) {
  uint32_t result = 0;
  for_each_lane(warp.mask, [&](uint32_t lane) {
    result |= static_cast<uint32_t>(warp.row<Response>(op.a)[lane].is_canceled != 0) << lane;
  });
  set_predicate(warp, op.dst, result);
  return Flow::next;
}
// op.immediate is the coordinate.
Flow first_cta_coordinate(Warp& warp, const Op& op) {
  for_each_lane(warp.mask, [&](uint32_t lane) {
    warp.row<uint32_t>(op.dst)[lane] = warp.row<Response>(op.a)[lane].first_cta[op.immediate];
  });
  return Flow::next;
}
Flow first_cta(Warp& warp, const Op& op) {
  const auto& rows = *static_cast<const std::vector<uint32_t>*>(op.detail);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const Response response = warp.row<Response>(op.a)[lane];
    for (size_t i = 0; i < 3; ++i) warp.row<uint32_t>(rows[i])[lane] = response.first_cta[i];
  });
  return Flow::next;
}

void decode_query_cancel(Decoding& d) {
  d.require_target({Target::sm_100a, Target::sm_103a});
  const size_t query = d.take_one_of(
      {"is_canceled", "get_first_ctaid", "get_first_ctaid::x", "get_first_ctaid::y", "get_first_ctaid::z"}, "query");
  const bool vector = query == 1 && d.take("v4");
  d.take_type_of({query == 0 ? Type::pred : Type::b32});
  d.take_type_of({Type::b128});
  d.require_operands(2);
  d.op.a = d.source(1, 128);
  if (query == 0) {
    d.op.dst = d.destination(0, 1);
    d.op.execute = &is_canceled;
  } else if (query == 1) {
    std::vector<uint32_t> rows = d.destination_list(d.operand(0), 32);
    if (!vector || rows.size() != 4) d.malformed("a vector of four registers is wanted");
    d.op.detail = d.keep(std::move(rows));
    d.op.execute = &first_cta;
  } else {
    d.op.dst = d.destination(0, 32);
    d.op.immediate = static_cast<int64_t>(query) - 2;
    d.op.execute = &first_cta_coordinate;
  }
}

}  // namespace

void add_cluster_launch_instructions(InstructionTable& table) {
  table["clusterlaunchcontrol.try_cancel"] = {decode_try_cancel, manual::kSynchronization};
  table["clusterlaunchcontrol.query_cancel"] = {decode_query_cancel, manual::kSynchronization};
}

}  // namespace opdeck::emu
