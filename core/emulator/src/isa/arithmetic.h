// SPDX-License-Identifier: Apache-2.0
// Decode functions of instructions whose name covers integer and floating-point forms; arithmetic.cpp chooses by type.
#pragma once

#include "decode.h"

namespace opdeck::emu {

void decode_integer_add(Decoding& d);
void decode_integer_sub(Decoding& d);
void decode_integer_mul(Decoding& d);
void decode_integer_mad(Decoding& d);
void decode_integer_div(Decoding& d);
void decode_integer_min(Decoding& d);
void decode_integer_max(Decoding& d);
void decode_integer_neg(Decoding& d);
void decode_integer_abs(Decoding& d);

// add.cc and sub.cc.
void decode_add_carry(Decoding& d);
void decode_sub_carry(Decoding& d);

void decode_float_add(Decoding& d);
void decode_float_sub(Decoding& d);
void decode_float_mul(Decoding& d);
void decode_float_fma(Decoding& d);
void decode_float_mad(Decoding& d);
void decode_float_div(Decoding& d);
void decode_float_min(Decoding& d);
void decode_float_max(Decoding& d);
void decode_float_neg(Decoding& d);
void decode_float_abs(Decoding& d);
void decode_float_ex2(Decoding& d);
void decode_float_tanh(Decoding& d);

void decode_half_add(Decoding& d);
void decode_half_sub(Decoding& d);
void decode_half_mul(Decoding& d);
void decode_half_fma(Decoding& d);
void decode_half_min(Decoding& d);
void decode_half_max(Decoding& d);
void decode_half_neg(Decoding& d);
void decode_half_abs(Decoding& d);
void decode_half_ex2(Decoding& d);
void decode_half_tanh(Decoding& d);

}  // namespace opdeck::emu
