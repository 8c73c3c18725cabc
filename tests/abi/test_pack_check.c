/* SPDX-License-Identifier: Apache-2.0
 *
 * test_pack_check.c: every fault that od_pack_check finds in a pack's tables, one at a time, in a copy of a good table.
 * Linked with the library's sources, since the library does not export it.
 */
#include "bind.h"
#include "check.h"
#include "pack_check.h"
#include "plan.h"
#include "text.h"

#if defined(__x86_64__)
#define HOST_TRIPLE "x86_64-unknown-linux-gnu"
#else
#define HOST_TRIPLE "aarch64-unknown-linux-gnu"
#endif

static void do_nothing(void **args) { (void)args; }
static void enter_nothing(void **args, int32_t num_args) { (void)args, (void)num_args; }

static const char *const dim_names[OD_MAX_RANK] = {"a", "b", "c", "d", "e", "f", "g", "h"};
static const char *const other_names[] = {"p"};
static const int32_t dtype_list[] = {OPDECK_DT_FP32};
static const int32_t bad_dtype_list[] = {99};
static const int64_t constants[] = {1, 2};
static const int32_t dims_of_x[] = {0, 1};
static const int32_t no_dims_of_x[] = {0, 2};
static const char digits[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/* A good pack, all of it writable. */
typedef struct tables {
  opdeck_pack_arg args[3];
  opdeck_pack_arg leaves[1];
  opdeck_rule checks[2];
  opdeck_rule empty[1];
  opdeck_rule accept[2];
  opdeck_pack_param params[4];
  opdeck_pack_count counts[1];
  opdeck_pack_term terms[1];
  opdeck_pack_family family;
  opdeck_pack_variant variant;
  opdeck_pack_table table;
} tables;

static void fill(tables *t) {
  *t = (tables){
      .args = {{"x", OPDECK_ARG_TENSOR, 1, 0, 2, dim_names, "T", 1, 16, dtype_list, 1, 0, NULL},
               {"y", OPDECK_ARG_TENSOR, 2, 1, 1, other_names, "U", 1, 4, dtype_list, 1, 0, NULL},
               {"scale", OPDECK_ARG_F32, 1, 1, 0, NULL, NULL, 0, 0, NULL, 0, OPDECK_DEFAULT_RSQRT, "a"}},
      .leaves = {{"bias", OPDECK_ARG_TENSOR, 1, 0, 1, NULL, NULL, 1, 4, dtype_list, 0, 0, NULL}},
      .checks = {{"a", OPDECK_RULE_MULTIPLE_OF, 0, NULL, "b"}, {"scale", OPDECK_RULE_GT, 1, constants, NULL}},
      .empty = {{"a", OPDECK_RULE_EQ, 1, constants, NULL}},
      .accept = {{"has.y", OPDECK_RULE_IN, 2, constants, NULL}, {"dtype.T", OPDECK_RULE_EQ, 1, constants, NULL}},
      .params = {{0, OPDECK_ARG_TENSOR, 1, 2, dims_of_x, dims_of_x},
                 {2, OPDECK_ARG_F32, 0, 0, NULL, NULL},
                 {-1, OPDECK_ARG_TENSOR, 1, 1, dims_of_x, dims_of_x},
                 {OPDECK_SOURCE_WORKSPACE, OPDECK_ARG_TENSOR, 0, 0, NULL, NULL}},
  };
  t->family = (opdeck_pack_family){"family", t->args, 3, 2, t->checks, t->empty, 1, 0};
  t->variant = (opdeck_pack_variant){.id = "variant",
                                     .arch = "sm_100a",
                                     .fusion = "none",
                                     .config = "",
                                     .accept = t->accept,
                                     .leaves = t->leaves,
                                     .params = t->params,
                                     .workspace = t->terms,
                                     .num_accept = 2,
                                     .num_leaves = 1,
                                     .num_params = 4,
                                     .num_terms = 1,
                                     .cuda_init = do_nothing,
                                     .cuda_load_to_device = do_nothing,
                                     .entry = enter_nothing,
                                     .cubin_sha256 = digits,
                                     .ptx = ""};
  t->counts[0] = (opdeck_pack_count){"b", 128};
  t->terms[0] = (opdeck_pack_term){4, t->counts, 1, 0};
  t->table =
      (opdeck_pack_table){sizeof t->table, OPDECK_PACK_ABI, "pack", "1", HOST_TRIPLE, &t->family, &t->variant, 1, 1};
}

#define FAULT_OF(status, bend, text)                             \
  do {                                                           \
    tables t;                                                    \
    fill(&t);                                                    \
    bend;                                                        \
    CHECK_STATUS(od_pack_check("file", &t.table), status, text); \
  } while (0)
#define FAULT(bend, text) FAULT_OF(OPDECK_PACK, bend, text)
#define GOOD(bend)                 \
  do {                             \
    od_clear_error();              \
    FAULT_OF(OPDECK_OK, bend, ""); \
  } while (0)

static void test_table(void) {
  GOOD((void)0);
  FAULT_OF(OPDECK_VERSION, t.table.abi = 1, "file: got pack ABI 1, want 5");
  FAULT_OF(OPDECK_VERSION, t.table.host_triple = "riscv64", "file: got host code for riscv64, want " HOST_TRIPLE);
  FAULT_OF(OPDECK_VERSION, t.table.host_triple = NULL, "got host code for no host");
  FAULT(t.table.num_variants = 0, "file: it has no kernels");
  FAULT(t.table.variants = NULL, "file: it has no kernels");
  FAULT(t.table.families = NULL, "file: it has no kernels");
  FAULT(t.table.num_families = -1, "file: it has no kernels");
}

static void test_argument_rows(void) {
  FAULT(t.family.name = NULL, "a family has no name");
  FAULT(t.family.num_args = 33, "family family: got 33 arguments, want 0..32");
  FAULT(t.family.args = NULL, "family family: got 3 arguments");
  FAULT(t.args[0].name = NULL, "family family: name of argument row 0 (unnamed) is not legal");
  FAULT(t.args[0].kind = 0, "kind of argument row 0 (x)");
  FAULT(t.args[0].access = 0, "access of argument row 0 (x)");
  FAULT(t.args[0].access = 4, "access of argument row 0 (x)");
  FAULT(t.args[0].rank = 9, "rank of argument row 0 (x)");
  FAULT(t.args[0].rank = -1, "rank of argument row 0 (x)");
  FAULT(t.args[0].dtypes = NULL, "dtypes of argument row 0 (x)");
  FAULT(t.args[0].dtypes = bad_dtype_list, "dtypes of argument row 0 (x)");
  FAULT(t.args[0].num_dtypes = 0, "dtypes of argument row 0 (x)");
  FAULT(t.args[0].align_bytes = 0, "align_bytes of argument row 0 (x)");
  FAULT(t.args[0].align_bytes = 24, "align_bytes of argument row 0 (x)");
  FAULT(t.args[0].align_bytes = 1 << 30, "align_bytes of argument row 0 (x)");
  FAULT(t.args[0].dims = NULL, "argument x has no dims");
  FAULT(t.args[1].dims = (const char *const[]){NULL}, "dims of argument row 1 (y)");
  FAULT(t.args[2].default_kind = 7, "default_kind of argument row 2 (scale)");
  FAULT((t.args[2].kind = OPDECK_ARG_I32, t.params[1].kind = OPDECK_ARG_I32), "default_kind of argument row 2 (scale)");
  FAULT(t.args[2].default_kind = OPDECK_DEFAULT_NUM_SMS, "default_kind of argument row 2 (scale)");
  FAULT(t.args[2].default_field = NULL, "default_field of argument row 2 (scale)");
  FAULT(t.args[2].default_field = "z", "the default of scale names z, which is no dim");
  FAULT(t.args[2].default_field = "p", "the default of scale names p, which is no dim"); /* of an optional argument */
}

static const opdeck_rule with_y[] = {{"has.y", OPDECK_RULE_EQ, 1, constants, NULL}};

static void test_families(void) {
  FAULT(t.family.checks = NULL, "family family: its rules are missing");
  FAULT(t.family.num_empty = -1, "family family: its rules are missing");
  FAULT(t.family.num_products = 1, "family family: its products are missing");
  static const opdeck_pack_count no_count[] = {{"n", 0}}, no_dim[] = {{"z", 1}};
  FAULT((t.family.num_products = 1, t.family.products = (const opdeck_pack_product[]){{"p", no_count, 1, 0}}),
        "count 0 of product p is malformed");
  FAULT((t.family.num_products = 1, t.family.products = (const opdeck_pack_product[]){{"p", no_dim, 1, 0}}),
        "count 0 of product p is malformed");
  FAULT((t.family.num_products = 2,
         t.family.products = (const opdeck_pack_product[]){{"p", no_dim, 0, 0}, {"p", no_dim, 1, 0}}),
        "count 0 of product p is malformed");
  FAULT((t.family.num_products = 1, t.family.products = (const opdeck_pack_product[]){{NULL, no_dim, 1, 0}}),
        "product 0 is malformed");
  FAULT(t.family.num_sizes = 1, "family family: its sizes are missing");
  opdeck_pack_size size = {"rows", {"p", 1}, with_y, 1, 0}; /* a dim of an optional argument may be absent */
  GOOD((t.family.num_sizes = 1, t.family.sizes = &size));
  static const opdeck_pack_count of_rows[] = {{"rows", 1}};
  GOOD((t.family.num_sizes = 1, t.family.sizes = &size, t.family.num_products = 2,
        t.family.products = (const opdeck_pack_product[]){{"b", no_dim, 0, 0}, {"b", of_rows, 1, 0}}));
  FAULT((t.family.num_sizes = 1, t.family.sizes = &size, t.family.num_products = 1,
         t.family.products = (const opdeck_pack_product[]){{"b", of_rows, 1, 0}}),
        "count 0 of product b is malformed"); /* not every problem has the size */
  size.count.divisor = 0;
  FAULT((t.family.num_sizes = 1, t.family.sizes = &size), "family family: size 0 is malformed");
  size = (opdeck_pack_size){"rows", {"z", 1}, with_y, 1, 0};
  FAULT((t.family.num_sizes = 1, t.family.sizes = &size), "family family: size 0 is malformed");
  size = (opdeck_pack_size){NULL, {"p", 1}, with_y, 1, 0};
  FAULT((t.family.num_sizes = 1, t.family.sizes = &size), "family family: size 0 is malformed");
  size = (opdeck_pack_size){"rows", {"p", 1}, NULL, 1, 0};
  FAULT((t.family.num_sizes = 1, t.family.sizes = &size), "family family: size 0 is malformed");
  static const opdeck_rule on_nothing[] = {{"z", OPDECK_RULE_EQ, 1, constants, NULL}};
  size = (opdeck_pack_size){"rows", {"p", 1}, on_nothing, 1, 0};
  FAULT((t.family.num_sizes = 1, t.family.sizes = &size), "family family: a rule names z, which is no field of family");
  FAULT(t.checks[0].field = NULL, "family family: a rule on no field is malformed");
  FAULT(t.checks[0].op = 12, "family family: a rule on a is malformed");
  FAULT(t.checks[0].rhs_field = "z", "family family: a rule names z, which is no field of family");
  FAULT(t.checks[1].op = OPDECK_RULE_MULTIPLE_OF, "a rule names scale, which is no field");
  FAULT((t.checks[1].rhs_field = "a", t.checks[1].num_values = 0), "a rule names scale, which is no field");
  FAULT(t.empty[0].field = "scale", "a rule names scale, which is no field");
  FAULT(t.accept[0].field = "scale", "variant variant: a rule names scale, which is no field");
  FAULT(t.accept[0].field = "has.x", "a rule names has.x, which is no field"); /* x is not optional */
  FAULT(t.accept[0].field = "p", "a rule names p, which is no field");         /* unbound when y is left out */
  FAULT(t.accept[0].field = "dtype.U", "a rule names dtype.U, which is no field");
  FAULT(t.accept[0].num_values = 0, "a rule on has.y is malformed");
  FAULT(t.checks[0].when_field = "z", "family family: a rule names z, which is no field of family");
  FAULT((t.checks[0].when_field = "has.y", t.checks[0].field = "z"), "a rule names z, which is no field of family");
  FAULT(t.checks[1].when_field = "has.y", "a rule names scale, which is no field");
  FAULT(t.empty[0].when_field = "has.y", "family family: a rule of no work is conditional");
  FAULT((t.checks[0].when_field = "has.y", t.checks[0].field = "dtype.V"), "a rule names dtype.V, which is no field");
  GOOD((t.checks[0].when_field = "has.y", t.checks[0].field = "p"));
  GOOD((t.checks[0].when_field = "has.y", t.checks[0].field = "dtype.U"));
  GOOD(t.accept[0].field = "arch");
  GOOD(t.accept[0].field = "num_sms");
}

static void test_variants(void) {
  FAULT(t.variant.id = NULL, "file: a variant has no id");
  FAULT(t.variant.arch = NULL, "variant variant: arch: missing or not legal");
  FAULT(t.variant.fusion = NULL, "fusion: missing or not legal");
  FAULT(t.variant.config = NULL, "config: missing or not legal");
  FAULT(t.variant.cubin_sha256 = "12", "cubin_sha256: missing or not legal");
  FAULT(t.variant.cubin_sha256 = NULL, "cubin_sha256: missing or not legal");
  FAULT(t.variant.ptx = NULL, "ptx: missing or not legal");
  FAULT(t.variant.entry = NULL, "entry points: missing or not legal");
  FAULT(t.variant.cuda_init = NULL, "entry points: missing or not legal");
  FAULT(t.variant.cuda_load_to_device = NULL, "entry points: missing or not legal");
  FAULT(t.variant.family_idx = 1, "family_idx: missing or not legal");
  FAULT(t.variant.family_idx = -1, "family_idx: missing or not legal");
  FAULT(t.variant.accept = NULL, "accept: missing or not legal");
  FAULT(t.variant.num_prefer = 1, "prefer: missing or not legal");
  FAULT(t.variant.leaves = NULL, "leaves: missing or not legal");
  FAULT(t.variant.num_leaves = 17, "leaves: missing or not legal");
  FAULT(t.leaves[0].rank = 9, "variant variant: rank of argument row 0 (bias) is not legal");
}

static void test_workspace(void) {
  FAULT(t.variant.workspace = NULL, "variant variant: the terms of its workspace are missing");
  FAULT(t.terms[0].factor_bytes = 0, "term 0 of its workspace is malformed");
  FAULT(t.terms[0].counts = NULL, "term 0 of its workspace is malformed");
  FAULT(t.counts[0].divisor = 0, "count 0 of term 0 of its workspace is malformed");
  FAULT(t.counts[0].field = NULL, "count 0 of term 0 of its workspace is malformed");
  FAULT(t.counts[0].field = "q", "count 0 of term 0 of its workspace is malformed");
}

static void test_params(void) {
  FAULT(t.variant.num_params = OD_MAX_PARAMS + 1, "got 49 parameters, want 0..48");
  FAULT(t.variant.params = NULL, "got 4 parameters, want 0..48");
  FAULT(t.params[0].source = 3, "parameter 0 has source 3");
  FAULT(t.params[2].source = -2, "parameter 2 has source -2");
  FAULT(t.params[2].source = INT32_MIN + 1, "parameter 2 has source -2147483647");
  FAULT(t.params[2].source = OPDECK_SOURCE_WORKSPACE, "parameter 2, the workspace, is no tensor of static layout");
  FAULT(t.params[3].kind = OPDECK_ARG_I32, "parameter 3, the workspace, is no tensor of static layout");
  FAULT(t.variant.num_terms = 0, "parameter 3 is the workspace, but the variant needs none");
  FAULT(t.params[1].kind = OPDECK_ARG_I32, "parameter 1 is of kind 2, scale of kind 3");
  FAULT(t.params[0].num_shape_dims = 3, "parameter 0 lists dims that x does not have");
  FAULT(t.params[0].num_stride_dims = -1, "parameter 0 lists dims that x does not have");
  FAULT(t.params[0].shape_dims = NULL, "parameter 0 lists dims that x does not have");
  FAULT(t.params[0].stride_dims = no_dims_of_x, "parameter 0 lists dims that x does not have");
}

/* Parameters that would outgrow the room that a launch has on its stack. */
static void test_size_of_params(void) {
  tables t;
  fill(&t);
  opdeck_pack_param params[OD_MAX_PARAMS];
  for (int param_idx = 0; param_idx < OD_MAX_PARAMS; ++param_idx)
    params[param_idx] = (opdeck_pack_param){0, OPDECK_ARG_TENSOR, 2, 2, dims_of_x, dims_of_x};
  t.variant.params = params;
  t.variant.num_params = OD_MAX_PARAMS;
  CHECK_OK(od_pack_check("file", &t.table));
  static const int32_t all_dims[] = {0, 1, 2, 3, 4, 5, 6, 7};
  t.args[0].rank = OD_MAX_RANK;
  for (int param_idx = 0; param_idx < OD_MAX_PARAMS; ++param_idx)
    params[param_idx] = (opdeck_pack_param){0, OPDECK_ARG_TENSOR, 8, 8, all_dims, all_dims};
  CHECK_STATUS(od_pack_check("file", &t.table), OPDECK_PACK, "its parameters take 6528 bytes, want at most 4096");
}

int main(void) {
  test_table();
  test_argument_rows();
  test_families();
  test_variants();
  test_workspace();
  test_params();
  od_clear_error();
  test_size_of_params();
  return check_exit_status();
}
