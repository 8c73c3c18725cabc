// SPDX-License-Identifier: Apache-2.0
// The functions of opdeck_emu.h: PTX registration, sessions, options, the last error.
#include <algorithm>
#include <cstring>

#include "../isa/pipes.h"
#include "../isa/probe.h"
#include "state.h"

namespace opdeck::emu {
namespace {

constexpr uint64_t kDefaultWatchdog = uint64_t{1} << 33;

opdeck_emu_options plain_options() {
  opdeck_emu_options options{};
  options.struct_size = sizeof options;
  options.schedule = OPDECK_EMU_EAGER;
  options.hazards = OPDECK_EMU_HAZARDS_ON;
  options.max_warp_instructions = kDefaultWatchdog;
  return options;
}

// What `given` leaves open is as in `defaults`.
opdeck_emu_options checked_options(const opdeck_emu_options* given, const opdeck_emu_options& defaults) {
  opdeck_emu_options options = plain_options();
  if (given == nullptr) return options;
  if (given->struct_size < 8)
    throw EmulatorError(Fault::invalid_value, "options: struct_size " + std::to_string(given->struct_size));
  std::memcpy(&options, given, std::min<size_t>(given->struct_size, sizeof options));
  options.struct_size = sizeof options;
  if (options.schedule < OPDECK_EMU_EAGER || options.schedule > OPDECK_EMU_RANDOM)
    throw EmulatorError(Fault::invalid_value, "options: schedule " + std::to_string(options.schedule) +
                                                  " is not eager (0), lazy (1) or random (2)");
  if (options.hazards < OPDECK_EMU_HAZARDS_OFF || options.hazards > OPDECK_EMU_HAZARDS_STRICT)
    throw EmulatorError(Fault::invalid_value,
                        "options: hazards " + std::to_string(options.hazards) + " is not off (0), on (1) or strict (2)");
  if (options.max_warp_instructions == 0) options.max_warp_instructions = defaults.max_warp_instructions;
  if (options.profile == 0) options.profile = defaults.profile;
  return options;
}

thread_local bool thread_in_session = false;

void check_ptx_arguments(const char* function, const char* sha256_hex, const char* ptx) {
  if (sha256_hex == nullptr || ptx == nullptr || std::strlen(sha256_hex) != 64 ||
      std::strspn(sha256_hex, "0123456789abcdef") != 64)
    throw EmulatorError(Fault::invalid_value, std::string(function) + ": 64 hex digits and a text are wanted");
}

void copy_report(const opdeck_emu_report& report, opdeck_emu_report& wanted) {
  const uint32_t size = wanted.struct_size == 0 ? static_cast<uint32_t>(sizeof wanted) : wanted.struct_size;
  std::memcpy(&wanted, &report, std::min<size_t>(size, sizeof report));
  wanted.struct_size = size;
}

size_t copy_text(const std::string& text, char* answer, size_t size) {
  if (size != 0) {
    const size_t length = std::min(size - 1, text.size());
    std::memcpy(answer, text.data(), length);
    answer[length] = 0;
  }
  return text.size() + 1;
}

}  // namespace

State& state() {
  static State* const instance = [] {
    auto* created = new State;  // lives as long as the process: other libraries' destructors may still call
    created->default_options = plain_options();
    return created;
  }();
  return *instance;
}

std::string& last_error() {
  thread_local std::string text;
  return text;
}

}  // namespace opdeck::emu

using namespace opdeck::emu;

extern "C" {

__attribute__((visibility("default"))) uint32_t opdeck_emu_version(void) { return OPDECK_EMU_VERSION; }

__attribute__((visibility("default"))) int opdeck_emu_register_ptx(const char* sha256_hex, const char* ptx,
                                                                   size_t len) {
  return guarded([&] {
    check_ptx_arguments("opdeck_emu_register_ptx", sha256_hex, ptx);
    const std::lock_guard lock(state().mutex);
    const auto [it, is_new] = state().ptx_by_sha256.try_emplace(sha256_hex, ptx, len);
    if (!is_new && it->second != std::string_view(ptx, len))
      throw EmulatorError(Fault::invalid_value,
                          std::string("another PTX text is registered for the cubin ") + sha256_hex);
  });
}

__attribute__((visibility("default"))) int opdeck_emu_replace_ptx(const char* sha256_hex, const char* ptx, size_t len) {
  return guarded([&] {
    check_ptx_arguments("opdeck_emu_replace_ptx", sha256_hex, ptx);
    const std::lock_guard lock(state().mutex);
    const auto registered = state().ptx_by_sha256.find(sha256_hex);
    if (registered == state().ptx_by_sha256.end())
      throw EmulatorError(Fault::invalid_value, std::string("no PTX is registered for the cubin ") + sha256_hex);
    std::string text(ptx, len);
    replace_programs(sha256_hex, text);
    registered->second = std::move(text);
  });
}

__attribute__((visibility("default"))) int opdeck_emu_begin(const opdeck_emu_tensor* tensors, uint32_t num_tensors,
                                                            const opdeck_emu_options* options) {
  return guarded([&] {
    if (thread_in_session) throw EmulatorError(Fault::invalid_value, "opdeck_emu_begin: this thread is in a session");
    if (tensors == nullptr && num_tensors != 0)
      throw EmulatorError(Fault::invalid_value, "opdeck_emu_begin: no tensors");
    State& s = state();
    std::unique_lock lock(s.mutex);
    Session session;
    session.options = options == nullptr ? s.default_options : checked_options(options, s.default_options);
    session.report.struct_size = sizeof session.report;
    session.active = true;
    s.memory.set_tensors(tensors, num_tensors);
    s.session = std::move(session);
    thread_in_session = true;
    lock.release();  // held until opdeck_emu_end
  });
}

__attribute__((visibility("default"))) int opdeck_emu_end(opdeck_emu_report* report) {
  return guarded([&] {
    if (!thread_in_session) throw EmulatorError(Fault::invalid_value, "opdeck_emu_end without opdeck_emu_begin");
    State& s = state();
    if (report != nullptr) copy_report(s.session.report, *report);
    s.last_report = s.session.report;
    s.last_profile = std::move(s.session.profile);
    s.memory.clear_tensors();
    s.session = Session{};
    thread_in_session = false;
    s.mutex.unlock();
  });
}

__attribute__((visibility("default"))) int opdeck_emu_set_default_options(const opdeck_emu_options* options) {
  return guarded([&] {
    const opdeck_emu_options checked = checked_options(options, plain_options());
    const std::lock_guard lock(state().mutex);
    state().default_options = checked;
  });
}

__attribute__((visibility("default"))) int opdeck_emu_last_report(opdeck_emu_report* report) {
  return guarded([&] {
    if (report == nullptr) throw EmulatorError(Fault::invalid_value, "opdeck_emu_last_report: report is NULL");
    const std::lock_guard lock(state().mutex);
    copy_report(state().last_report, *report);
  });
}

__attribute__((visibility("default"))) int opdeck_emu_last_profile(const opdeck_emu_profile_row** rows,
                                                                   uint64_t* num_rows) {
  return guarded([&] {
    if (rows == nullptr || num_rows == nullptr)
      throw EmulatorError(Fault::invalid_value, "opdeck_emu_last_profile: an argument is NULL");
    const std::lock_guard lock(state().mutex);
    *rows = state().last_profile.rows.data();
    *num_rows = state().last_profile.rows.size();
  });
}

__attribute__((visibility("default"))) const char* opdeck_emu_pipe(const char* opcode) {
  const Pipe pipe = opcode == nullptr ? Pipe::count : find_pipe(opcode);
  return pipe == Pipe::count ? nullptr : pipe_name(pipe);
}

__attribute__((visibility("default"))) const char* opdeck_emu_last_error(void) { return last_error().c_str(); }

__attribute__((visibility("default"))) size_t opdeck_emu_instructions(char* answer, size_t size) {
  std::string text;
  for (const auto& [name, entry] : instruction_table()) text += name + "\t" + entry.section + "\n";
  return copy_text(text, answer, size);
}

__attribute__((visibility("default"))) size_t opdeck_emu_probe(const char* target, const char* opcode, char* answer,
                                                               size_t size) {
  std::string text;
  guarded([&] {
    const ProbeAnswer probed = probe_instruction(target, opcode);
    text = probed.accepted ? "accepted\n" : "refused\t" + probed.refusal + "\n";
    for (const OfferedModifier& offered : probed.offered)
      text += std::to_string(offered.at) + "\t" + offered.modifier + (offered.is_wanted ? "\twanted\n" : "\n");
  });
  return copy_text(text, answer, size);
}

}  // extern "C"
