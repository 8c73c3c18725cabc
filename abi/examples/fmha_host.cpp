// SPDX-License-Identifier: Apache-2.0
//
// fmha_host.cpp: attention from C++ on views of one packed (B, S, 3, H, D) bf16 tensor, with no copy, on
// opdeck_raii.hpp.
//
//     fmha_host_cpp PACK [DEVICE]
//
// Prints what opdeck_explain says, launches the plan twice, the second time on other values, and compares both with
// double precision on the CPU. Exits with 0 when the errors are within bounds, 1 when not, 2 when opdeck reported an
// error.
#include "attention_reference.h"
#include "device_memory.h"
#include "opdeck_raii.hpp"

#include <iostream>
#include <string>
#include <vector>

namespace {

constexpr double o_tolerance = 1e-2; // relative, of bf16
constexpr double lse_tolerance = 5e-3;
constexpr attention_sizes sizes{2, 192, 192, 3, 3, 64};
constexpr int64_t row_elems = 3 * sizes.hq * sizes.d; // q, k and v of one position

// Device memory that frees itself.
class Buffer {
 public:
  Buffer(const device_memory &memory, std::size_t bytes)
      : memory_(memory), bytes_(bytes), data_(allocate_on_device(&memory, bytes)) {
    if (data_ == nullptr) throw std::runtime_error("no memory on the device");
  }
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;
  ~Buffer() { free_on_device(&memory_, data_); }

  void set(const void *host) {
    if (copy_to_device(&memory_, data_, host, bytes_) != 0) throw std::runtime_error("cannot copy to the device");
  }
  void get(void *host) const {
    if (copy_to_host(&memory_, host, data_, bytes_) != 0) throw std::runtime_error("cannot copy to the host");
  }
  char *data() const { return static_cast<char *>(data_); }

 private:
  const device_memory &memory_;
  std::size_t bytes_;
  void *data_;
};

// q, k and v: the part_idx-th of the packed tensor's three.
opdeck_raii::Tensor part_of(const Buffer &packed, int part_idx) {
  void *first = packed.data() + part_idx * sizes.hq * sizes.d * 2;
  return {first,
          OPDECK_CODE_BFLOAT,
          16,
          {sizes.b, sizes.sq, sizes.hq, sizes.d},
          {sizes.sq * row_elems, row_elems, sizes.d, 1}};
}

attention_errors errors_of(const std::vector<uint16_t> &packed, const Buffer &o, const Buffer &lse) {
  std::vector<uint16_t> host_o(sizes.b * sizes.sq * sizes.hq * sizes.d);
  std::vector<float> host_lse(sizes.b * sizes.hq * sizes.sq);
  o.get(host_o.data());
  lse.get(host_lse.data());
  bf16_view qkv[3];
  for (int part_idx = 0; part_idx < 3; ++part_idx)
    qkv[part_idx] = {packed.data() + part_idx * sizes.hq * sizes.d, sizes.sq * row_elems, row_elems, sizes.d};
  return compare_attention(&sizes, qkv, all_visible, host_o.data(), host_lse.data());
}

bool run(const std::string &pack, const std::string &device) {
  opdeck_raii::Context ctx(device);
  ctx.load_pack(pack);
  std::cout << ctx.kernels().size() << " kernels in " << pack << "\n";
  device_memory memory;
  if (open_device_memory(&memory, device.c_str()) != 0) throw std::runtime_error("no device memory");

  std::vector<uint16_t> values(sizes.b * sizes.sq * row_elems);
  Buffer packed(memory, values.size() * sizeof values[0]);
  Buffer o_memory(memory, sizes.b * sizes.sq * sizes.hq * sizes.d * 2);
  Buffer lse_memory(memory, sizes.b * sizes.hq * sizes.sq * 4);
  opdeck_raii::Tensor q = part_of(packed, 0);
  opdeck_raii::Tensor k = part_of(packed, 1);
  opdeck_raii::Tensor v = part_of(packed, 2);
  opdeck_raii::Tensor o(o_memory.data(), OPDECK_CODE_BFLOAT, 16, {sizes.b, sizes.sq, sizes.hq, sizes.d},
                        {sizes.sq * sizes.hq * sizes.d, sizes.hq * sizes.d, sizes.d, 1});
  opdeck_raii::Tensor lse(lse_memory.data(), OPDECK_CODE_FLOAT, 32, {sizes.b, sizes.hq, sizes.sq},
                          {sizes.hq * sizes.sq, sizes.sq, 1});
  if (memory.is_cuda)
    for (opdeck_raii::Tensor *tensor : {&q, &k, &v, &o, &lse}) tensor->move_to_cuda(memory.device_id);

  using opdeck_raii::tensor_arg;
  const std::array args{tensor_arg("q", q), tensor_arg("k", k), tensor_arg("v", v), tensor_arg("o", o),
                        tensor_arg("lse", lse)};
  auto problem = opdeck_raii::sized<opdeck_problem>();
  problem.family = "fmha_fwd";
  problem.num_args = args.size();
  problem.args = args.data();
  std::cout << ctx.explain(problem);
  const opdeck_raii::Plan plan(ctx, problem);
  bool is_good = true;
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    fill_normal(values.data(), static_cast<int64_t>(values.size()), seed);
    packed.set(values.data());
    plan.launch(problem);
    const attention_errors errors = errors_of(values, o_memory, lse_memory);
    is_good = is_good && errors.o_relative <= o_tolerance && errors.lse_largest <= lse_tolerance;
    std::cout << plan.info().variant << ", seed " << seed << ": o relative error " << errors.o_relative
              << ", lse largest error " << errors.lse_largest << "\n";
  }
  std::cout << (is_good ? "PASS" : "FAIL") << "\n";
  return is_good;
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 2 && argc != 3) {
    std::cerr << "usage: " << argv[0] << " PACK [DEVICE]\n";
    return 2;
  }
  const char *from_environment = std::getenv("OPDECK_DEVICE");
  const std::string device = argc == 3 ? argv[2] : from_environment != nullptr ? from_environment : "emulator:sm_100a";
  try {
    return run(argv[1], device) ? 0 : 1;
  } catch (const std::exception &error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
