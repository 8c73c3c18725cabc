// SPDX-License-Identifier: Apache-2.0
// Tensor maps: decoding and validation, and the element work of loads, stores and reductions; see tensormap.h.
#include "tensormap.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "approx_math.h"
#include "message.h"
#include "numbers.h"

namespace opdeck::emu {
namespace {

struct TypeTraits {
  const char* name;
  uint32_t elem_bits;
};
constexpr TypeTraits type_traits[] = {
    {"u8", 8},        {"u16", 16},  {"u32", 32},       {"s32", 32},      {"u64", 64},       {"s64", 64},
    {"f16", 16},      {"f32", 32},  {"f64", 64},       {"bf16", 16},     {"f32_ftz", 32},   {"tf32", 32},
    {"tf32_ftz", 32}, {"u4_align8", 4}, {"u4_align16", 4}, {"u6_align16", 6}};

// The 16 elements that fill a 16-byte slot take these bytes of it.
uint32_t slot_bytes(TensorMapType type) { return type_traits[static_cast<size_t>(type)].elem_bits * 2; }
bool is_slotted(TensorMapType type) { return type == TensorMapType::u4_align16 || type == TensorMapType::u6_align16; }

constexpr uint32_t elems_per_slot = 16;

constexpr uint32_t bits(uint64_t word, uint32_t low, uint32_t num_bits) {
  return static_cast<uint32_t>(word >> low & ((uint64_t{1} << num_bits) - 1));
}

// The 4-bit type field and the bit that asks for rounding to tf32.
std::optional<TensorMapType> decode_type(uint32_t code, bool round_to_tf32) {
  if (round_to_tf32) {
    if (code == 7) return TensorMapType::tf32;
    if (code == 8) return TensorMapType::tf32_ftz;
    return {};
  }
  constexpr TensorMapType types[] = {TensorMapType::u8,  TensorMapType::u16, TensorMapType::u32, TensorMapType::s32,
                                     TensorMapType::u64, TensorMapType::s64, TensorMapType::f16, TensorMapType::f32,
                                     TensorMapType::f32_ftz, TensorMapType::f64, TensorMapType::bf16,
                                     TensorMapType::u4_align8, TensorMapType::u4_align16, TensorMapType::u6_align16};
  if (code < std::size(types)) return types[code];
  return {};
}

std::optional<Swizzle> decode_swizzle(uint32_t mode, uint32_t atom) {
  if (atom != 0 && mode != 3) return {};
  switch (mode) {
    case 0: return Swizzle::none;
    case 1: return Swizzle::b32;
    case 2: return Swizzle::b64;
    default: break;
  }
  constexpr Swizzle atoms[] = {Swizzle::b128, Swizzle::b128_atom32, Swizzle::b128_atom32_flip8, Swizzle::b128_atom64};
  return atoms[atom];
}

struct RawMap {
  uint64_t q[16];
};

// Where a field stands: bits [low, low + num_bits) of a quadword, and what is stored: (value - bias) / unit.
struct FieldPlace {
  uint32_t word, low, num_bits;
  uint32_t bias = 0, unit = 1;
};

FieldPlace place_of(TensorMapField field, uint32_t ordinal) {
  const uint32_t i = ordinal;
  switch (field) {
    case TensorMapField::global_address: return {0, 0, 64};
    case TensorMapField::rank: return {1, 4, 3};
    case TensorMapField::box_dim: return {6 + (i + 7) / 8, (i + 7) % 8 * 8, 8, 1};
    case TensorMapField::global_dim: return {4 + i / 2, i % 2 * 32, 32, 1};
    case TensorMapField::global_stride: return {1 + (i + 1) / 2, (i + 1) % 2 * 32, 32, 0, 16};
    case TensorMapField::element_stride: return {6, 32 + 3 * i, 3, 1};
    case TensorMapField::elemtype: return {1, 7, 4};
    case TensorMapField::interleave_layout: return {1, 11, 2};
    case TensorMapField::swizzle_mode: return {1, 13, 2};
    case TensorMapField::swizzle_atomicity: return {1, 19, 2};
    case TensorMapField::fill_mode: break;
  }
  return {1, 15, 1};
}
constexpr FieldPlace kRoundToTf32 = {1, 16, 1};

uint64_t get(const RawMap& raw, const FieldPlace& place) {
  const uint64_t stored = raw.q[place.word] >> place.low & (~uint64_t{0} >> (64 - place.num_bits));
  return stored * place.unit + place.bias;
}
uint64_t get(const RawMap& raw, TensorMapField field, uint32_t ordinal = 0) { return get(raw, place_of(field, ordinal)); }

void put(RawMap& raw, const FieldPlace& place, uint64_t stored) {
  const uint64_t mask = (~uint64_t{0} >> (64 - place.num_bits)) << place.low;
  raw.q[place.word] = (raw.q[place.word] & ~mask) | stored << place.low;
}

TensorMap decode_fields(const RawMap& raw) {
  using Field = TensorMapField;
  TensorMap map;
  map.base = get(raw, Field::global_address);
  map.rank = static_cast<uint32_t>(get(raw, Field::rank)) + 1;
  for (uint32_t d = 0; d < TensorMap::max_rank; ++d) {
    map.size_elems[d] = get(raw, Field::global_dim, d);
    map.box_elems[d] = static_cast<uint32_t>(get(raw, Field::box_dim, d));
    map.elem_strides[d] = d == 0 ? 1 : static_cast<uint32_t>(get(raw, Field::element_stride, d));
    map.stride_bytes[d] = d == 0 ? 0 : get(raw, Field::global_stride, d - 1);
  }
  return map;
}

// tensormap.replace numbers the types otherwise than the map does, where tf32 is f32 and a bit.
Error replace_type(RawMap& raw, uint64_t value) {
  if (value > 15) return message("tensormap.replace: elemtype is ", value, ", want 0 .. 15");
  const bool is_tf32 = value == 11 || value == 12;
  put(raw, place_of(TensorMapField::elemtype, 0), is_tf32 ? value - 4 : value > 12 ? value - 2 : value);
  put(raw, kRoundToTf32, is_tf32);
  return {};
}

// Fields whose meaning is known and whose use is not emulated, and those that are not known.
Error check_unsupported(const RawMap& raw) {
  const struct {
    const char* meaning;
    uint32_t word, low, num_bits;
  } fields[] = {
      {"the interleave mode (others than none are not supported)", 1, 11, 2},
      {"the out-of-bounds fill (NaN is not supported)", 1, 15, 1},
      {"a reserved field", 1, 22, 10},
      {"a reserved field", 3, 32, 32},
      {"the mode (im2col is not supported)", 6, 47, 9},
      {"a reserved field", 7, 32, 32},
  };
  // The low bits of quadword 1: 0 as the driver writes it for sm_90, 2 as the CuTe DSL writes it.
  if (const uint32_t version = bits(raw.q[1], 0, 4); version != 0 && version != 2)
    return message("tensor map: the version is ", version, ", want 0 or 2: not a tiled CUtensorMap");
  for (const auto& f : fields)
    if (const uint32_t got = bits(raw.q[f.word], f.low, f.num_bits))
      return message("tensor map: bits [", f.low + f.num_bits - 1, ":", f.low, "] of quadword ", f.word, ", ",
                     f.meaning, ", are ", Hex{got}, ", want 0");
  return {};
}

Error field_error(const char* what, uint32_t dim, uint64_t got, const std::string& want) {
  return message("tensor map: ", what, "[", dim, "] is ", got, ", want ", want);
}

// (The encoding cannot hold strides that are not multiples of 16, or sizes and boxes out of their ranges.)
Error check_global(const TensorMap& map) {
  const bool slotted = is_slotted(map.type);
  const uint64_t alignment = slotted ? 32 : 16;
  if (map.base % alignment != 0)
    return message("tensor map: the global address ", Hex{map.base}, " is not a multiple of ", alignment);
  for (uint32_t d = 1; d < map.rank; ++d)
    if (map.stride_bytes[d] % alignment != 0)
      return field_error("globalStrides", d - 1, map.stride_bytes[d], message("a multiple of ", alignment));
  if (slotted && map.size_elems[0] % 128 != 0)
    return field_error("globalDim", 0, map.size_elems[0], "a multiple of 128");
  if (map.type == TensorMapType::u4_align8 && map.size_elems[0] % 2 != 0)
    return field_error("globalDim", 0, map.size_elems[0], "a multiple of 2");
  return {};
}

constexpr uint64_t max_shared_memory_bytes = 256 * 1024;

Error check_box(const TensorMap& map) {
  const uint32_t row_bytes = map.box_row_bytes();
  if (is_slotted(map.type) && map.box_elems[0] != 128)
    return field_error("boxDim", 0, map.box_elems[0], message("128 for ", tensor_map_type_name(map.type)));
  if (uint64_t{map.box_elems[0]} * map.elem_bits() % 128 != 0)
    return field_error("boxDim", 0, map.box_elems[0],
                       message("a multiple of 16 bytes of ", tensor_map_type_name(map.type)));
  if (map.swizzle != Swizzle::none && row_bytes > swizzle_span_bytes(map.swizzle))
    return message("tensor map: the box's inner dimension is ", row_bytes, " bytes, want at most ",
                   swizzle_span_bytes(map.swizzle), " under swizzle ", swizzle_name(map.swizzle));
  uint64_t box_bytes = row_bytes;  // 256^4 rows would overflow box_bytes()
  for (uint32_t d = 1; d < map.rank; ++d) box_bytes *= map.num_copied(d);
  if (box_bytes > max_shared_memory_bytes)
    return message("tensor map: the box is ", box_bytes, " bytes, more than any shared memory, ",
                   max_shared_memory_bytes);
  if (map.type == TensorMapType::u6_align16 && map.swizzle != Swizzle::none && map.swizzle != Swizzle::b128)
    return message("tensor map: swizzle ", swizzle_name(map.swizzle),
                   " is not allowed for u6_align16, want none or 128B");
  return {};
}

template <class T>
T load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// memory[i] = combine(memory[i], source[i]).
template <class T, class Combine>
void combine_all(const uint8_t* source, uint32_t num_elems, uint8_t* memory, Combine combine) {
  for (uint32_t i = 0; i < num_elems; ++i) {
    const T result = combine(load<T>(memory + i * sizeof(T)), load<T>(source + i * sizeof(T)));
    std::memcpy(memory + i * sizeof(T), &result, sizeof(T));
  }
}

template <class T>
void reduce_integers(ReduceOp op, const uint8_t* source, uint32_t num_elems, uint8_t* memory) {
  using Unsigned = std::make_unsigned_t<T>;
  combine_all<T>(source, num_elems, memory, [op](T m, T s) -> T {
    switch (op) {
      case ReduceOp::add: return static_cast<T>(static_cast<Unsigned>(m) + static_cast<Unsigned>(s));
      case ReduceOp::min: return std::min(m, s);
      case ReduceOp::max: return std::max(m, s);
      case ReduceOp::inc: return m >= s ? T{0} : static_cast<T>(m + 1);
      case ReduceOp::dec: return m == 0 || m > s ? s : static_cast<T>(m - 1);
      case ReduceOp::and_: return static_cast<T>(m & s);
      case ReduceOp::or_: return static_cast<T>(m | s);
      case ReduceOp::xor_: return static_cast<T>(m ^ s);
    }
    return m;
  });
}

// min and max give the other operand where one is a NaN; -0 is less than +0.
float float_min(float a, float b) {
  if (a == b) return std::signbit(a) ? a : b;
  return std::fmin(a, b);
}
float float_max(float a, float b) {
  if (a == b) return std::signbit(a) ? b : a;
  return std::fmax(a, b);
}

float reduce_float(ReduceOp op, float m, float s) {
  switch (op) {
    case ReduceOp::min: return float_min(m, s);
    case ReduceOp::max: return float_max(m, s);
    default: return m + s;
  }
}

void reduce_halves(ReduceOp op, NumberFormat format, const uint8_t* source, uint32_t num_elems, uint8_t* memory) {
  combine_all<uint16_t>(source, num_elems, memory, [op, format](uint16_t m, uint16_t s) {
    // f32 keeps more than twice the bits of either half and two, so rounding the f32 sum again is rounding once.
    const float result = reduce_float(op, decode(m, format), decode(s, format));
    return static_cast<uint16_t>(encode(result, Conversion{format}));
  });
}

}  // namespace

const char* tensor_map_field_name(TensorMapField field) {
  constexpr const char* kNames[] = {"global_address", "rank", "box_dim", "global_dim", "global_stride", "element_stride",
                                    "elemtype", "interleave_layout", "swizzle_mode", "swizzle_atomicity", "fill_mode"};
  return kNames[static_cast<size_t>(field)];
}

uint32_t num_ordinals(TensorMapField field) {
  switch (field) {
    case TensorMapField::box_dim:
    case TensorMapField::global_dim:
    case TensorMapField::element_stride: return TensorMap::max_rank;
    case TensorMapField::global_stride: return TensorMap::max_rank - 1;
    default: return 0;
  }
}

Error replace_tensor_map_field(uint8_t* bytes_128, TensorMapField field, uint32_t ordinal, uint64_t value) {
  RawMap raw;
  std::memcpy(&raw, bytes_128, sizeof raw);
  const FieldPlace place = place_of(field, ordinal);
  if (field == TensorMapField::elemtype) {
    if (Error error = replace_type(raw, value); !error.empty()) return error;
  } else {
    const uint64_t largest = (~uint64_t{0} >> (64 - place.num_bits)) * place.unit + place.bias;
    if (value < place.bias || value > largest || (value - place.bias) % place.unit != 0)
      return message("tensormap.replace: ", tensor_map_field_name(field), " is ", value, ", want ", place.bias, " .. ",
                     largest, place.unit > 1 ? message(", a multiple of ", place.unit) : std::string());
    put(raw, place, (value - place.bias) / place.unit);
  }
  std::memcpy(bytes_128, &raw, sizeof raw);
  return {};
}

const char* tensor_map_type_name(TensorMapType type) { return type_traits[static_cast<size_t>(type)].name; }

uint32_t TensorMap::elem_bits() const { return type_traits[static_cast<size_t>(type)].elem_bits; }

uint64_t TensorMap::global_bytes(uint64_t num_elems) const { return num_elems * elem_bits() / 8; }

uint32_t TensorMap::shared_bytes(uint32_t num_elems) const {
  if (is_slotted(type)) return num_elems / elems_per_slot * 16;
  return static_cast<uint32_t>(global_bytes(num_elems));
}

uint32_t TensorMap::box_bytes() const {
  uint32_t bytes = box_row_bytes();
  for (uint32_t d = 1; d < rank; ++d) bytes *= num_copied(d);
  return bytes;
}

uint32_t TensorMap::transaction_bytes() const {
  return is_slotted(type) ? box_bytes() / 16 * slot_bytes(type) : box_bytes();
}

Expected<TensorMap> decode_tensor_map(const uint8_t* bytes_128) {
  using Result = Expected<TensorMap>;
  RawMap raw;
  std::memcpy(&raw, bytes_128, sizeof(raw));
  if (Error e = check_unsupported(raw); !e.empty()) return Result::failure(e);
  TensorMap map = decode_fields(raw);
  if (map.rank > TensorMap::max_rank)
    return Result::failure(message("tensor map: rank is ", map.rank, ", want 1 .. 5"));
  const auto type_code = static_cast<uint32_t>(get(raw, TensorMapField::elemtype));
  const auto type = decode_type(type_code, get(raw, kRoundToTf32) != 0);
  if (!type) return Result::failure(message("tensor map: data type ", type_code, " is not known"));
  map.type = *type;
  const auto swizzle = decode_swizzle(static_cast<uint32_t>(get(raw, TensorMapField::swizzle_mode)),
                                      static_cast<uint32_t>(get(raw, TensorMapField::swizzle_atomicity)));
  if (!swizzle) return Result::failure("tensor map: a swizzle atom is set, want the 128B swizzle with it");
  map.swizzle = *swizzle;
  if (Error e = check_global(map); !e.empty()) return Result::failure(e);
  if (Error e = check_box(map); !e.empty()) return Result::failure(e);
  return map;
}

Error check_coords(const TensorMap& map, const int32_t* coords, TensorCopy copy) {
  const uint32_t step = is_slotted(map.type) ? 128 : 128 / map.elem_bits();
  if (coords[0] % static_cast<int32_t>(step) != 0)
    return message("tensor copy: coordinate 0 is ", coords[0], ", want a multiple of ", step, " for ",
                   tensor_map_type_name(map.type));
  if (copy == TensorCopy::load) return {};
  for (uint32_t d = 0; d < map.rank; ++d)
    if (coords[d] < 0)
      return message("tensor copy: coordinate ", d, " of a store or reduction is ", coords[d], ", want 0 or more");
  return {};
}

BoxSplit split_box(int64_t start, uint32_t box, uint64_t size) {
  const int64_t end = start + box;
  const int64_t inside_begin = std::clamp<int64_t>(start, 0, static_cast<int64_t>(size));
  const int64_t inside_end = std::clamp<int64_t>(end, 0, static_cast<int64_t>(size));
  if (inside_begin >= inside_end) return {box, 0, 0};
  return {static_cast<uint32_t>(inside_begin - start), static_cast<uint32_t>(inside_end - inside_begin),
          static_cast<uint32_t>(end - inside_end)};
}

void expand_elems(TensorMapType type, const uint8_t* global, uint32_t num_elems, uint8_t* shared) {
  if (!is_slotted(type)) {
    std::memcpy(shared, global, size_t{num_elems} * type_traits[static_cast<size_t>(type)].elem_bits / 8);
    return;
  }
  const uint32_t data_bytes = slot_bytes(type);
  for (uint32_t slot = 0; slot < num_elems / elems_per_slot; ++slot) {
    std::memcpy(shared + slot * 16, global + slot * data_bytes, data_bytes);
    std::memset(shared + slot * 16 + data_bytes, 0, 16 - data_bytes);
  }
}

void compact_elems(TensorMapType type, const uint8_t* shared, uint32_t num_elems, uint8_t* global) {
  if (!is_slotted(type)) {
    std::memcpy(global, shared, size_t{num_elems} * type_traits[static_cast<size_t>(type)].elem_bits / 8);
    return;
  }
  const uint32_t data_bytes = slot_bytes(type);
  for (uint32_t slot = 0; slot < num_elems / elems_per_slot; ++slot)
    std::memcpy(global + slot * data_bytes, shared + slot * 16, data_bytes);
}

const char* reduce_op_name(ReduceOp op) {
  constexpr const char* names[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor"};
  return names[static_cast<size_t>(op)];
}

Error check_reduction(ReduceOp op, TensorMapType type) {
  using T = TensorMapType;
  const bool word = type == T::u32 || type == T::s32, dword = type == T::u64 || type == T::s64;
  const bool half = type == T::f16 || type == T::bf16, single = type == T::f32 || type == T::f32_ftz;
  bool allowed = false;
  const char* want = "";
  switch (op) {
    case ReduceOp::add:
      allowed = word || type == T::u64 || half || single;
      want = "u32, s32, u64, f16, bf16 or f32";
      break;
    case ReduceOp::min:
    case ReduceOp::max:
      allowed = word || dword || half;
      want = "u32, s32, u64, s64, f16 or bf16";
      break;
    case ReduceOp::inc:
    case ReduceOp::dec:
      allowed = type == T::u32;
      want = "u32";
      break;
    case ReduceOp::and_:
    case ReduceOp::or_:
    case ReduceOp::xor_:
      allowed = word || dword;
      want = "32- or 64-bit integers";
      break;
  }
  if (allowed) return {};
  return message("cp.reduce.async.bulk: .", reduce_op_name(op), " on ", tensor_map_type_name(type), ", want ", want);
}

void reduce_elems(ReduceOp op, TensorMapType type, const uint8_t* source, uint32_t num_elems, uint8_t* memory) {
  switch (type) {
    case TensorMapType::u32: reduce_integers<uint32_t>(op, source, num_elems, memory); break;
    case TensorMapType::s32: reduce_integers<int32_t>(op, source, num_elems, memory); break;
    case TensorMapType::u64: reduce_integers<uint64_t>(op, source, num_elems, memory); break;
    case TensorMapType::s64: reduce_integers<int64_t>(op, source, num_elems, memory); break;
    case TensorMapType::f16: reduce_halves(op, NumberFormat::f16, source, num_elems, memory); break;
    case TensorMapType::bf16: reduce_halves(op, NumberFormat::bf16, source, num_elems, memory); break;
    case TensorMapType::f32:
      combine_all<float>(source, num_elems, memory, [op](float m, float s) { return reduce_float(op, m, s); });
      break;
    case TensorMapType::f32_ftz:
      combine_all<float>(source, num_elems, memory,
                         [op](float m, float s) { return ftz(reduce_float(op, ftz(m), ftz(s))); });
      break;
    default: break;  // refused by check_reduction
  }
}

}  // namespace opdeck::emu
