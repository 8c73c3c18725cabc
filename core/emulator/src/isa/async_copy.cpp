// SPDX-License-Identifier: Apache-2.0
#include "async_copy.h"

namespace opdeck::emu {

void submit_async(Warp& warp, AsyncQueue::Stream stream, std::function<void()> work) {
  Launch& launch = warp.launch;
  const uint32_t pc = warp.pc, warp_idx = warp.warp_idx;
  const auto cta = warp.cta.index;
  launch.async.submit(stream, [&launch, pc, warp_idx, cta, work = std::move(work)] {
    try {
      work();
    } catch (const EmulatorError& error) {
      const SourcePlace& place = launch.program.places[pc];
      throw EmulatorError(error.fault(),
                          "asynchronous `" + place.text + "` of " + place.line_text() +
                              ", issued by warp " + std::to_string(warp_idx) + " of CTA (" + std::to_string(cta[0]) +
                              ", " + std::to_string(cta[1]) + ", " + std::to_string(cta[2]) + "): " + error.what());
    }
  });
}

void complete_tx(Cluster& cluster, uint32_t mbarrier, uint32_t num_bytes, const Signal& signal) {
  if (signal) cluster.hazards->signal_mbarrier(mbarrier, signal);
  cluster.expect_mbarrier_tx(mbarrier, -static_cast<int32_t>(num_bytes));
}

void require_multiple(const char* what, uint64_t value, uint64_t of) {
  if (value % of == 0) return;
  throw EmulatorError(Fault::misaligned,
                      std::string(what) + " " + std::to_string(value) + " is not a multiple of " + std::to_string(of));
}

void submit_group_copy(Warp& warp, GroupQueue& queue, std::function<void()> read_source, std::function<void()> write) {
  const std::shared_ptr<BulkGroup> group = queue.open();
  ++group->pending_reads;
  ++group->pending_writes;
  Launch& launch = warp.launch;
  // The write is queued behind the read, as work of the same order.
  const AsyncQueue::Stream stream = group.get();
  submit_async(warp, AsyncQueue::kUnordered,
               [&launch, group, stream, read_source = std::move(read_source), write = std::move(write)] {
                 read_source();
                 --group->pending_reads;
                 launch.signal();
                 launch.async.submit(stream, [&launch, group, write] {
                   write();
                   --group->pending_writes;
                   launch.signal();
                 });
               });
}

}  // namespace opdeck::emu
