// SPDX-License-Identifier: Apache-2.0
//
// opdeck_raii.hpp: a thin C++17 way to hold contexts, plans and tensors, to copy into a program. Errors become
// exceptions that carry the status and the message; nothing else is added to opdeck.h.
#ifndef OPDECK_EXAMPLES_OPDECK_RAII_HPP
#define OPDECK_EXAMPLES_OPDECK_RAII_HPP

#include "opdeck.h"

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace opdeck_raii {

class Error : public std::runtime_error {
 public:
  explicit Error(opdeck_status status)
      : std::runtime_error(std::string(opdeck_status_name(status)) + ": " + opdeck_last_error()), status_(status) {}
  opdeck_status status() const { return status_; }

 private:
  opdeck_status status_;
};

inline void check(opdeck_status status) {
  if (status != OPDECK_OK) throw Error(status);
}

// A struct of opdeck.h with its struct_size set and all else zero.
template <typename Struct>
Struct sized() {
  Struct value{};
  value.struct_size = sizeof value;
  return value;
}

// A tensor of up to four dims that owns its shape and strides, not its memory.
class Tensor {
 public:
  Tensor(void *data, opdeck_dtype_code code, int bits, std::vector<int64_t> shape, std::vector<int64_t> strides)
      : shape_(std::move(shape)), strides_(std::move(strides)) {
    tensor_.data = data;
    tensor_.device_type = OPDECK_DEVICE_CPU;
    tensor_.ndim = static_cast<int32_t>(shape_.size());
    tensor_.dtype_code = static_cast<uint8_t>(code);
    tensor_.dtype_bits = static_cast<uint8_t>(bits);
    tensor_.dtype_lanes = 1;
    tensor_.shape = shape_.data();
    tensor_.strides = strides_.data();
  }
  Tensor(const Tensor &) = delete;
  Tensor &operator=(const Tensor &) = delete;

  void move_to_cuda(int device_id) {
    tensor_.device_type = OPDECK_DEVICE_CUDA;
    tensor_.device_id = device_id;
  }
  const opdeck_tensor *get() const { return &tensor_; }

 private:
  std::vector<int64_t> shape_;
  std::vector<int64_t> strides_;
  opdeck_tensor tensor_{};
};

inline opdeck_arg tensor_arg(const char *name, const Tensor &tensor) {
  opdeck_arg arg{};
  arg.name = name;
  arg.kind = OPDECK_ARG_TENSOR;
  arg.value.tensor = tensor.get();
  return arg;
}

class Context {
 public:
  explicit Context(const std::string &device) {
    auto desc = sized<opdeck_ctx_desc>();
    desc.device = device.c_str();
    opdeck_ctx *made = nullptr;
    check(opdeck_ctx_create(&desc, &made));
    ctx_.reset(made);
  }
  void load_pack(const std::string &path) { check(opdeck_ctx_load_pack(get(), path.c_str())); }
  std::vector<opdeck_kernel_info> kernels() const {
    uint32_t num_kernels = 0;
    check(opdeck_ctx_num_kernels(get(), &num_kernels));
    std::vector<opdeck_kernel_info> infos(num_kernels, sized<opdeck_kernel_info>());
    for (uint32_t kernel_idx = 0; kernel_idx < num_kernels; ++kernel_idx)
      check(opdeck_ctx_kernel_info(get(), kernel_idx, &infos[kernel_idx]));
    return infos;
  }
  std::string explain(const opdeck_problem &problem) const {
    std::size_t needed_bytes = 0;
    check(opdeck_explain(get(), &problem, nullptr, 0, &needed_bytes));
    std::string text(needed_bytes, '\0');
    check(opdeck_explain(get(), &problem, text.data(), text.size(), nullptr));
    text.pop_back(); // the NUL
    return text;
  }
  opdeck_ctx *get() const { return ctx_.get(); }

 private:
  struct Destroy {
    void operator()(opdeck_ctx *ctx) const { opdeck_ctx_destroy(ctx); }
  };
  std::unique_ptr<opdeck_ctx, Destroy> ctx_;
};

class Plan {
 public:
  Plan(const Context &ctx, const opdeck_problem &problem) {
    opdeck_plan *made = nullptr;
    check(opdeck_plan_create(ctx.get(), &problem, &made));
    plan_.reset(made);
    check(opdeck_plan_prepare(get()));
  }
  void launch(const opdeck_problem &problem, void *stream = nullptr) const {
    check(opdeck_plan_launch(get(), &problem, nullptr, 0, stream));
  }
  opdeck_kernel_info info() const {
    auto info = sized<opdeck_kernel_info>();
    check(opdeck_plan_info(get(), &info));
    return info;
  }
  opdeck_plan *get() const { return plan_.get(); }

 private:
  struct Destroy {
    void operator()(opdeck_plan *plan) const { opdeck_plan_destroy(plan); }
  };
  std::unique_ptr<opdeck_plan, Destroy> plan_;
};

} // namespace opdeck_raii

#endif
