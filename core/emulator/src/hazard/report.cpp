// SPDX-License-Identifier: Apache-2.0
// The text of a hazard: its kind, the place, and the other access.
#include "../machine/error.h"
#include "detector.h"

namespace opdeck::emu {
namespace {

const char* agent_text(AgentKind kind) {
  switch (kind) {
    case AgentKind::warp:
    case AgentKind::mbarrier_init: return "";
    case AgentKind::thread_copy: return "the asynchronous copy ";
    case AgentKind::bulk_load: return "the bulk load ";
    case AgentKind::bulk_read:
    case AgentKind::bulk_write: return "the bulk store ";
    case AgentKind::tensor_pipe: return "the tensor core's ";
    case AgentKind::tmem_load: return "the load ";
    case AgentKind::tmem_store: return "the store ";
    case AgentKind::wgmma: return "the warpgroup's ";
  }
  return "";
}

}  // namespace

void ClusterHazards::fail(const std::string& kind, const std::string& text) const {
  throw EmulatorError(Fault::failed, "hazard [" + kind + "]: " + text);
}

std::string ClusterHazards::cta_text(uint32_t rank) const {
  const auto& i = cluster_.ctas[rank]->index;
  return "CTA (" + std::to_string(i[0]) + ", " + std::to_string(i[1]) + ", " + std::to_string(i[2]) + ")";
}

std::string ClusterHazards::place_text(Memory memory, uint32_t rank, size_t cell_idx) const {
  if (memory == Memory::shared)
    return "shared address " + hex(static_cast<uint32_t>(cell_idx) * granule_bytes_) + " of " + cta_text(rank);
  const uint32_t column = static_cast<uint32_t>(cell_idx) / 8, lane = static_cast<uint32_t>(cell_idx) % 8 * 16;
  return "tensor memory column " + std::to_string(column) + ", lanes " + std::to_string(lane) + " .. " +
         std::to_string(lane + 15) + " of " + cta_text(rank);
}

std::string ClusterHazards::describe(Epoch epoch, Site site) const {
  const SourcePlace& place = launch_.program.places[site.op_idx()];
  return agent_text(agents_[epoch.agent()].kind) + ("`" + place.text) + "` at " + place.line_text() + " of warp " + std::to_string(site.warp_idx()) + ", " + cta_text(site.rank());
}

std::string ClusterHazards::conflict_kind(const Conflict& conflict, const Actor& actor, Memory memory, uint32_t rank) const {
  const bool shared = memory == Memory::shared;
  if (conflict.why == Conflict::Why::unfenced) return "missing-proxy-fence";
  if (conflict.why == Conflict::Why::mbarrier) return "mbarrier-overwritten";
  if (conflict.why == Conflict::Why::uninitialized) return shared ? "uninitialized-shared" : "uninitialized-tmem";
  if (shared)
    return rank != actor.site.rank() || rank != conflict.other.site.rank() ? "distributed-shared-race" : "shared-race";
  // The other access's own warp does not know that it has ended: it is not waited for at all.
  const AgentKind kind = agents_[conflict.other.epoch.agent()].kind;
  const Site& site = conflict.other.site;
  const WarpState& issuer = warps_[site.rank() * num_warps_ + site.warp_idx()];
  const bool awaited = tensor_order(issuer).covers(conflict.other.epoch);
  if (kind == AgentKind::tmem_store && !awaited) return "missing-wait-st";
  if (kind == AgentKind::tmem_load && !awaited) return "missing-wait-ld";
  return actor.knows->all.covers(conflict.other.epoch) ? "missing-tensor-fence" : "tmem-race";
}

void ClusterHazards::fail_allocation(const Actor& actor, uint32_t rank, uint32_t column, const Touch& allocation) const {
  fail(actor.knows->all.covers(allocation.epoch) ? "missing-tensor-fence" : "tmem-use-before-alloc",
       "this access of tensor memory column " + std::to_string(column) + " of " + cta_text(rank) +
           " is not ordered after its allocation by " + describe(allocation.epoch, allocation.site));
}

void ClusterHazards::fail(const Conflict& conflict, const Actor& actor, Memory memory, uint32_t rank, bool writes) const {
  const std::string kind = conflict_kind(conflict, actor, memory, rank);
  const std::string place = place_text(memory, rank, conflict.cell_idx);
  std::string text = std::string("this ") + (writes ? "write" : "read") + " of " + place;
  if (conflict.why == Conflict::Why::uninitialized) fail(kind, text + " finds what nobody has written");
  const std::string other = describe(conflict.other.epoch, conflict.other.site);
  if (conflict.why == Conflict::Why::mbarrier) fail(kind, text + " touches the mbarrier initialised by " + other);
  if (conflict.why == Conflict::Why::unfenced)
    fail(kind, text + " by the async proxy is ordered after the " + (conflict.other_writes ? "write" : "read") + " by " + other +
                   ", but no fence.proxy.async is between");
  fail(kind, text + " is not ordered after the " + (conflict.other_writes ? "write" : "read") + " by " + other);
}

}  // namespace opdeck::emu
