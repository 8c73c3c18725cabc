// SPDX-License-Identifier: Apache-2.0
// Instructions of the PTX ISA that the emulator knows by name and refuses: so the error can cite their section, and the
// table of coverage lists them. What is not here is in no release of PTX that the emulator was made from.
#include "decode.h"

namespace opdeck::emu {
namespace {

void refuse(Decoding& d) { d.unsupported("this instruction"); }

struct Refused {
  const char* section;
  std::initializer_list<const char*> names;
};
const Refused kRefused[] = {
    {manual::kDataMovement,
     {"st.async", "multimem.ld_reduce", "multimem.st", "multimem.red", "multimem.cp.async.bulk",
      "multimem.cp.reduce.async.bulk", "discard"}},
    {manual::kTexture, {"tex", "tld4", "txq", "istypep"}},
    {manual::kSurface, {"suld", "sust", "sured", "suq"}},
    {manual::kControlFlow, {"call"}},
    {manual::kSynchronization, {"red.async"}},
    {manual::kWarpMatrix, {"wmma.load", "wmma.store", "wmma.mma", "mma.sp"}},
    {manual::kWarpgroupMatrix, {"wgmma.mma_async.sp"}},
    {manual::kTensorCore5, {"tcgen05.shift", "tcgen05.mma.sp", "tcgen05.mma.ws", "tcgen05.mma.ws.sp"}},
    {manual::kStack, {"stacksave", "stackrestore", "alloca"}},
    {manual::kVideo, {"vadd",  "vsub",  "vabsdiff", "vmin",      "vmax",      "vshl",  "vshr",  "vmad",
                      "vset",  "vadd2", "vsub2",    "vavrg2",    "vabsdiff2", "vmin2", "vmax2", "vset2",
                      "vadd4", "vsub4", "vavrg4",   "vabsdiff4", "vmin4",     "vmax4", "vset4"}},
};

}  // namespace

void add_refused_instructions(InstructionTable& table) {
  for (const Refused& family : kRefused)
    for (const char* const name : family.names) table[name] = {refuse, family.section};
}

}  // namespace opdeck::emu
