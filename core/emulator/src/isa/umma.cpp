// SPDX-License-Identifier: Apache-2.0
// tcgen05.mma and tcgen05.commit. Source: PTX ISA, "TensorCore 5th Generation: tcgen05.mma, tcgen05.commit".
// The arithmetic: tensor/umma.h. Operands are read and D is written when the schedule completes the instruction; MMAs,
// copies and commits of one CTA (pair) complete in order.
// Limits: .ws, .sp, .ashift and multicast of A are not supported. Collector hints change no result.
#include "../tensor/umma.h"

#include "../counters/count.h"
#include "../hazard/detector.h"
#include "async_copy.h"
#include "lanes.h"
#include "tensor_pipe.h"

namespace opdeck::emu {
namespace {

struct UmmaDetail {
  MmaKind kind = MmaKind::f16;
  uint32_t num_ctas = 1;
  uint32_t scale_vector = 0;
  AddressOperand d, a_tmem, sfa, sfb;
  bool a_in_tmem = false, block_scaled = false;
  uint32_t a_row = 0, b_row = 0, descriptor_row = 0, accumulate_row = 0;
  uint32_t accumulate_flip = 0;
  std::vector<uint32_t> disable_rows;
  uint32_t scale_input_d_log2 = 0;
};

UmmaOperands read_operands(Warp& warp, const UmmaDetail& detail, uint32_t lane) {
  UmmaOperands operands;
  operands.kind = detail.kind;
  operands.target = warp.launch.program.target;
  operands.num_ctas = detail.num_ctas;
  operands.scale_vector = detail.scale_vector;
  operands.instruction_descriptor = warp.row<uint32_t>(detail.descriptor_row)[lane];
  operands.d_address = shared_operand(warp, detail.d, lane);
  operands.a_in_tmem = detail.a_in_tmem;
  operands.a = detail.a_in_tmem ? shared_operand(warp, detail.a_tmem, lane) : warp.row<uint64_t>(detail.a_row)[lane];
  operands.b_descriptor = warp.row<uint64_t>(detail.b_row)[lane];
  if (detail.block_scaled) {
    operands.sfa_address = shared_operand(warp, detail.sfa, lane);
    operands.sfb_address = shared_operand(warp, detail.sfb, lane);
  }
  operands.accumulate = ((warp.predicate(detail.accumulate_row) ^ detail.accumulate_flip) >> lane & 1) != 0;
  operands.scale_input_d_log2 = detail.scale_input_d_log2;
  for (size_t i = 0; i < detail.disable_rows.size(); ++i)
    operands.disabled_lanes[i] = warp.row<uint32_t>(detail.disable_rows[i])[lane];
  return operands;
}

void require_allocated(const TensorPair& pair, uint32_t num_ctas, const char* what, uint32_t address,
                       uint32_t columns) {
  for (uint32_t i = 0; i < num_ctas; ++i)
    pair.ctas[i]->require_tmem(std::string(what) + ": ", tmem_column(address), columns);
}

void count_mma(OpTally& tally, const UmmaPlan& plan) {
  const uint64_t rows = plan.b_rows_per_cta + (plan.operands.a_in_tmem ? 0 : plan.a_rows_per_cta);
  tally.macs += plan.num_macs();
  tally.shared_read_bytes += plan.operands.num_ctas * rows * plan.k_bytes;
}

Flow multiply(Warp& warp, const Op& op) {
  const auto& detail = *static_cast<const UmmaDetail*>(op.detail);
  const uint32_t lane = single_lane(warp);
  const TensorPair pair = tensor_pair(warp, detail.num_ctas);
  Expected<UmmaPlan> plan = plan_umma(read_operands(warp, detail, lane), warp.cta.shared_bytes());
  if (!plan.ok()) throw EmulatorError(Fault::illegal_instruction, plan.error);
  const UmmaOperands& operands = plan.value.operands;
  require_allocated(pair, detail.num_ctas, "D", operands.d_address, plan.value.d_columns);
  if (operands.a_in_tmem)
    require_allocated(pair, detail.num_ctas, "A", static_cast<uint32_t>(operands.a), plan.value.a_columns);
  if (detail.block_scaled) {
    require_allocated(pair, detail.num_ctas, "the scale factors of A", operands.sfa_address & 0x3fffffff,
                      plan.value.sfa_columns);
    require_allocated(pair, detail.num_ctas, "the scale factors of B", operands.sfb_address & 0x3fffffff,
                      plan.value.sfb_columns);
  }
  if (OpTally* tally = tally_of(warp)) count_mma(*tally, plan.value);
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->multiply(warp, pair.ctas, plan.value);
  Launch& launch = warp.launch;
  const uint32_t num_ctas = detail.num_ctas;
  submit_async(warp, pair.stream(), [pair, num_ctas, &launch, plan = std::move(plan.value)] {
    UmmaCta ctas[2];
    for (uint32_t i = 0; i < num_ctas; ++i) ctas[i] = {pair.ctas[i]->shared_view(), pair.ctas[i]->tmem_view()};
    const Error error = execute_umma(plan, ctas);
    if (!error.empty()) throw EmulatorError(Fault::illegal_instruction, error);
    launch.counters.mma_macs += plan.num_macs();
    launch.signal();
  });
  return Flow::next;
}

void take_scale_vector(Decoding& d, UmmaDetail& detail) {
  if (!d.take("block_scale")) {
    if (is_block_scaled(detail.kind)) d.unsupported("this kind without .block_scale");
    return;
  }
  if (!is_block_scaled(detail.kind)) d.unsupported(".block_scale with this kind");
  detail.block_scaled = true;
  if (d.take("scale_vec::1X"))
    detail.scale_vector = 1;
  else if (d.take("scale_vec::2X"))
    detail.scale_vector = 2;
  else if (d.take("scale_vec::4X") || d.take("block16"))
    detail.scale_vector = 4;
  else if (d.take("block32"))
    detail.scale_vector = detail.kind == MmaKind::mxf8f6f4 ? 1 : 2;
}

// disable-output-lane vector, enable-input-d, scale-input-d: the operands behind the fixed ones.
void set_trailing_operands(Decoding& d, UmmaDetail& detail, size_t i) {
  if (d.operand(i).kind == ptx::Operand::Kind::vector) {
    detail.disable_rows = d.source_list(d.operand(i), 32);
    if (detail.disable_rows.size() != 4 * detail.num_ctas)
      d.malformed("the disable-output-lane vector has a wrong length");
    ++i;
  }
  ptx::Operand accumulate = d.operand(i);
  detail.accumulate_flip = accumulate.negated ? 0xffffffff : 0;
  accumulate.negated = false;
  detail.accumulate_row = d.source(accumulate, 1);
  d.require_operands(i + 1, i + 2);
  if (d.num_operands() == i + 2) {
    if (detail.kind != MmaKind::f16 && detail.kind != MmaKind::tf32) d.unsupported("scale-input-d with this kind");
    const int64_t log2 = d.immediate(i + 1);
    if (log2 < 0 || log2 > 15) d.malformed("scale-input-d is not in 0 .. 15");
    detail.scale_input_d_log2 = static_cast<uint32_t>(log2);
  }
}

void decode_mma(Decoding& d) {
  require_tcgen05(d);
  UmmaDetail detail;
  detail.num_ctas = take_cta_group(d);
  detail.kind = static_cast<MmaKind>(d.take_one_of(
      {"kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8", "kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4"},
      "kind"));
  if (detail.kind == MmaKind::i8) d.require_target({Target::sm_100a});
  take_scale_vector(d, detail);
  for (const std::string_view m :
       {"collector::a::fill", "collector::a::use", "collector::a::lastuse", "collector::a::discard"})
    d.take(m);
  detail.d = d.address(size_t{0});
  detail.a_in_tmem = d.operand(1).kind == ptx::Operand::Kind::address;
  if (detail.a_in_tmem)
    detail.a_tmem = d.address(1);
  else
    detail.a_row = d.source(1, 64);
  detail.b_row = d.source(2, 64);
  detail.descriptor_row = d.source(3, 32);
  if (detail.block_scaled) {
    detail.sfa = d.address(4);
    detail.sfb = d.address(5);
  }
  set_trailing_operands(d, detail, detail.block_scaled ? 6 : 4);
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = &multiply;
}

struct CommitDetail {
  uint32_t num_ctas = 1;
  AddressOperand mbarrier;
  bool multicast = false;
  uint32_t multicast_row = 0;
};

Flow commit(Warp& warp, const Op& op) {
  const auto& detail = *static_cast<const CommitDetail*>(op.detail);
  const uint32_t lane = single_lane(warp);
  const uint32_t mbarrier = shared_operand(warp, detail.mbarrier, lane);
  Cluster& cluster = warp.cta.cluster;
  const uint32_t ctas = detail.multicast ? warp.row<uint16_t>(detail.multicast_row)[lane] : 1u << shared_rank(mbarrier);
  if (ctas == 0 || ctas >> cluster.num_ctas() != 0)
    throw EmulatorError(Fault::illegal_instruction, "multicast mask " + std::to_string(ctas) + " for a cluster of " +
                                                        std::to_string(cluster.num_ctas()));
  Launch& launch = warp.launch;
  const TensorPair pair = tensor_pair(warp, detail.num_ctas);
  Signal signal;
  if (ClusterHazards* hazards = hazards_of(warp)) {
    for_each_lane(ctas,
                  [&](uint32_t rank) { hazards->use_mbarrier(warp, shared_address(rank, shared_offset(mbarrier))); });
    signal = hazards->commit_tensor(warp, *pair.ctas[0], ctas);
  }
  submit_async(warp, pair.stream(), [&cluster, &launch, ctas, mbarrier, signal] {
    for_each_lane(ctas, [&](uint32_t rank) {
      const uint32_t address = shared_address(rank, shared_offset(mbarrier));
      if (signal) cluster.hazards->signal_mbarrier(address, signal);
      cluster.arrive_mbarrier(address, 1, 0);
    });
    launch.signal();
  });
  return Flow::next;
}

void decode_mma_commit(Decoding& d) {
  require_tcgen05(d);
  CommitDetail detail;
  detail.num_ctas = take_cta_group(d);
  d.take_one_of({"mbarrier::arrive::one"}, "completion");
  const bool shared = d.take("shared::cluster");
  detail.multicast = d.take("multicast::cluster");
  d.take_type_of({Type::b64});
  d.require_operands(detail.multicast ? 2 : 1);
  detail.mbarrier = d.address(size_t{0});
  if (!shared && detail.mbarrier.bits == 64) d.unsupported("generic addresses");
  if (detail.multicast) detail.multicast_row = d.source(1, 16);
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = &commit;
}

}  // namespace

void add_umma_instructions(InstructionTable& table) {
  table["tcgen05.mma"] = {decode_mma, manual::kTensorCore5};
  table["tcgen05.commit"] = {decode_mma_commit, manual::kTensorCore5};
}

}  // namespace opdeck::emu
