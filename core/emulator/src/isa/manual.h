// SPDX-License-Identifier: Apache-2.0
// Sections of the PTX ISA manual, release 9.0: what errors cite and the table of coverage is ordered by.
#pragma once

namespace opdeck::emu::manual {

inline constexpr char kInteger[] = "9.7.1 Integer Arithmetic Instructions";
inline constexpr char kExtendedInteger[] = "9.7.2 Extended-Precision Integer Arithmetic Instructions";
inline constexpr char kFloat[] = "9.7.3 Floating Point Instructions";
inline constexpr char kComparison[] = "9.7.6 Comparison and Selection Instructions";
inline constexpr char kLogic[] = "9.7.8 Logic and Shift Instructions";
inline constexpr char kDataMovement[] = "9.7.9 Data Movement and Conversion Instructions";
inline constexpr char kTexture[] = "9.7.10 Texture Instructions";
inline constexpr char kSurface[] = "9.7.11 Surface Instructions";
inline constexpr char kControlFlow[] = "9.7.12 Control Flow Instructions";
inline constexpr char kSynchronization[] = "9.7.13 Parallel Synchronization and Communication Instructions";
inline constexpr char kWarpMatrix[] = "9.7.14 Warp Level Matrix Multiply-Accumulate Instructions";
inline constexpr char kWarpgroupMatrix[] =
    "9.7.15 Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions";
inline constexpr char kTensorCore5[] = "9.7.16 TensorCore 5th Generation Family Instructions";
inline constexpr char kStack[] = "9.7.17 Stack Manipulation Instructions";
inline constexpr char kVideo[] = "9.7.18 Video Instructions";
inline constexpr char kMiscellaneous[] = "9.7.19 Miscellaneous Instructions";
// Of names that several families have: the decode function chooses by type.
inline constexpr char kAllArithmetic[] =
    "9.7.1, 9.7.3, 9.7.4, 9.7.5 Integer, Floating Point, Half and Mixed Precision Instructions";
inline constexpr char kFloatArithmetic[] = "9.7.3, 9.7.4, 9.7.5 Floating Point, Half and Mixed Precision Instructions";
inline constexpr char kCommonArithmetic[] =
    "9.7.1, 9.7.3, 9.7.4 Integer, Floating Point and Half Precision Instructions";
inline constexpr char kIntegerAndFloat[] = "9.7.1, 9.7.3 Integer and Floating Point Instructions";
inline constexpr char kFloatAndHalf[] = "9.7.3, 9.7.4 Floating Point and Half Precision Instructions";

}  // namespace opdeck::emu::manual
