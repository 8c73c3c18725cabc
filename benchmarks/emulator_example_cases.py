# SPDX-License-Identifier: Apache-2.0
"""Which of NVIDIA's CuTe DSL examples emulator_examples.py runs, and with what arguments. A case is a row."""

from __future__ import annotations

from dataclasses import dataclass

EXAMPLES = "examples/python/CuTeDSL/cute"
TUTORIAL = "blackwell/tutorial/tutorial_gemm"
DENSE = "blackwell/kernel/dense_gemm"
BLOCK_SCALED_FOLDER = "blackwell/kernel/blockscaled_gemm"
BLOCK_SCALED = f"{BLOCK_SCALED_FOLDER}/dense_blockscaled_gemm_persistent.py"
BLOCK_SCALED_103 = f"{BLOCK_SCALED_FOLDER}/sm103_dense_blockscaled_gemm_persistent.py"
FMHA = "blackwell/kernel/attention/fmha/fmha.py"
FMHA_BWD = "blackwell/kernel/attention/fmha/fmha_bwd.py"
MLA = "blackwell/kernel/attention/mla"
BLOCKWISE = "blackwell/kernel/blockwise_gemm"
HOPPER = "hopper/kernel"
FP16_GEMM = "--ab_dtype Float16 --c_dtype Float16 --use_tma_store"
TWO_CTA = "--use_2cta_instrs --mma_tiler_mn 256,256 --cluster_shape_mn 2,1"


@dataclass(frozen=True)
class Case:
    """One run of one example. script: below EXAMPLES. arguments: of its command line.

    compared: for an example that compares by hand, the variables x of its function run, beside which is x_ref.
    """

    name: str
    script: str
    arguments: str
    arch: str = "sm_100a"
    compared: tuple[str, ...] = ()


def _attention(name: str, dtypes: str, shape: str, more: str = "") -> Case:
    return Case(name, FMHA, f"{dtypes} --q_shape {shape} --k_shape {shape} {more}")


def _attention_backward(name: str, arguments: str) -> Case:
    return Case(name, FMHA_BWD, arguments, compared=("dq", "dk", "dv"))


def _hopper_attention(name: str, dtypes: str, shape: str, more: str = "") -> Case:
    arguments = f"{dtypes} --q_shape {shape} --k_shape {shape} {more}"
    return Case(name, f"{HOPPER}/attention/fmha.py", arguments, "sm_90a")


def _block_scaled(name: str, types: str, more: str = "--mnkl 256,256,512,1") -> Case:
    return Case(name, BLOCK_SCALED, f"{types} {more}")


MXFP8 = "--a_dtype Float8E4M3FN --b_dtype Float8E4M3FN --sf_dtype Float8E8M0FNU --sf_vec_size 32"
MXFP4 = "--a_dtype Float4E2M1FN --b_dtype Float4E2M1FN --sf_dtype Float8E8M0FNU --sf_vec_size 32"
NVFP4 = "--a_dtype Float4E2M1FN --b_dtype Float4E2M1FN --sf_dtype Float8E4M3FN --sf_vec_size 16"
FP16, BF16 = "--in_dtype Float16 --out_dtype Float16", "--in_dtype BFloat16 --out_dtype BFloat16"
FP8 = "--in_dtype Float8E4M3FN --out_dtype Float16"

CASES = (
    *(Case(f"fp16_gemm_{i}", f"{TUTORIAL}/fp16_gemm_{i}.py", "--mnk 512,512,256") for i in ("0", "1", "2", "3", "3_1")),
    *(Case(f"fp16_gemm_{i}", f"{TUTORIAL}/fp16_gemm_{i}.py", "--mnk 512,512,256") for i in ("4", "5", "6")),
    Case("dense_gemm", f"{DENSE}/dense_gemm.py", f"--mnkl 256,256,256,1 {FP16_GEMM}"),
    Case("dense_gemm, tf32", f"{DENSE}/dense_gemm.py", "--mnkl 256,256,128,1"),
    Case("dense_gemm, M-major A, N-major B", f"{DENSE}/dense_gemm.py",
         f"--mnkl 256,256,256,1 {FP16_GEMM} --a_major m --b_major n"),
    Case("dense_gemm_persistent, 2-CTA", f"{DENSE}/dense_gemm_persistent.py",
         f"--mnkl 512,512,256,1 {FP16_GEMM} {TWO_CTA}"),
    Case("dense_gemm_persistent, 2-CTA, multicast", f"{DENSE}/dense_gemm_persistent.py",
         f"--mnkl 1024,512,256,1 {FP16_GEMM} --use_2cta_instrs --mma_tiler_mn 256,128 --cluster_shape_mn 4,2"),
    Case("dense_gemm_persistent, int8", f"{DENSE}/dense_gemm_persistent.py",
         "--mnkl 256,256,256,1 --ab_dtype Int8 --c_dtype Int32 --acc_dtype Int32 --use_tma_store"),
    Case("dense_gemm_persistent_dynamic, CLC", f"{DENSE}/dense_gemm_persistent_dynamic.py",
         f"--mnkl 512,512,256,1 {FP16_GEMM} {TWO_CTA}"),
    _attention("fmha, fp16", FP16, "1,256,2,128"),
    _attention("fmha, bf16, causal", BF16, "1,256,2,128", "--is_causal --lse_calculation --is_persistent"),
    _attention("fmha, bf16, ragged, exp2 emulation, skip", BF16, "1,300,2,128",
               "--enable_ex2_emulation --enable_skip_correction"),
    _attention("fmha, fp16, window", FP16, "1,384,2,128", "--window_size 100,30 --lse_calculation"),
    _attention("fmha, fp16, d 64, ragged", FP16, "1,200,2,64", "--is_causal --bottom_right_align"),
    _attention("fmha, fp8", FP8, "1,256,2,128"),
    Case("fmha, fp16, varlen", FMHA,
         f"{FP16} --q_shape 2,(100,200),2,128 --k_shape 2,(200,130),2,128 --lse_calculation"),
    Case("fmha, bf16, GQA, d 64", FMHA, f"{BF16} --q_shape 1,256,4,64 --k_shape 1,384,2,64"),
    Case("fmha, fp16, bottom-right causal, sq < sk", FMHA,
         f"{FP16} --q_shape 1,100,2,128 --k_shape 1,300,2,128 --is_causal --bottom_right_align --lse_calculation"),
    Case("fmha, fp16, sink", FMHA, f"{FP16} --q_shape 1,256,2,128 --k_shape 1,256,2,128 --enable_sink"),
    _attention("fmha, fp8, d 64, causal", FP8, "1,256,2,64", "--is_causal"),
    _attention("fmha, bf16, PDL, skip softmax", BF16, "1,512,1,128", "--use_pdl --skip_softmax_threshold 0.001"),
    _attention_backward("fmha_bwd, fp16", "--s_q 256 --s_k 256 --h_q 2 --h_k 2 --d 128"),
    _attention_backward("fmha_bwd, bf16, causal, GQA",
                        "--s_q 256 --s_k 256 --h_q 4 --h_k 2 --d 128 --is_causal --element_dtype BFloat16"),
    _attention_backward("fmha_bwd, fp16, d 64", "--s_q 256 --s_k 256 --h_q 2 --h_k 2 --d 64"),
    Case("mla_decode, fp16", f"{MLA}/mla_decode_fp16.py", "--seq_len_k 512 --split_kv 2 --is_persistent"),
    Case("mla_decode, fp16, one split, page 64, two queries", f"{MLA}/mla_decode_fp16.py",
         "--seq_len_k 300 --split_kv 1 --page_size 64 --seq_len_q 2"),
    Case("mla_decode, fp16, variable lengths", f"{MLA}/mla_decode_fp16.py",
         "--seq_len_k 512 --batch_size 3 --is_var_seq --is_var_split_kv --is_persistent"),
    Case("mla_decode, fp8, one split, page 32", f"{MLA}/mla_decode_fp8.py",
         "--seq_len_k 384 --split_kv 1 --page_size 32 --tolerance 0.13"),
    Case("mla_decode, fp8", f"{MLA}/mla_decode_fp8.py", "--seq_len_k 512 --split_kv 2 --is_persistent"),
    _block_scaled("blockscaled_gemm, MXFP8", MXFP8),
    _block_scaled("blockscaled_gemm, MXFP4", MXFP4),
    _block_scaled("blockscaled_gemm, NVFP4", NVFP4),
    _block_scaled("blockscaled_gemm, MXFP8 x MXFP4", MXFP8.replace("b_dtype Float8E4M3FN", "b_dtype Float4E2M1FN")),
    _block_scaled("blockscaled_gemm, MXFP8, 2-CTA", MXFP8,
                  "--mnkl 512,512,512,1 --mma_tiler_mn 256,256 --cluster_shape_mn 2,1"),
    _block_scaled("blockscaled_gemm, NVFP4, 2-CTA, 4x2 cluster", NVFP4,
                  "--mnkl 1024,512,512,1 --mma_tiler_mn 256,256 --cluster_shape_mn 4,2"),
    _block_scaled("blockscaled_gemm, MXFP6 e3m2", MXFP8.replace("Float8E4M3FN", "Float6E3M2FN")),
    _block_scaled("blockscaled_gemm, MXFP6 e2m3 x MXFP8 e5m2", MXFP8.replace("a_dtype Float8E4M3FN",
                  "a_dtype Float6E2M3FN").replace("b_dtype Float8E4M3FN", "b_dtype Float8E5M2")),
    _block_scaled("blockscaled_gemm, MXFP6 e2m3 x MXFP4",
                  MXFP4.replace("a_dtype Float4E2M1FN", "a_dtype Float6E2M3FN")),
    _block_scaled("blockscaled_gemm, MXFP4 x MXFP6 e3m2, 2-CTA, 4x2 cluster",
                  MXFP4.replace("b_dtype Float4E2M1FN", "b_dtype Float6E3M2FN"),
                  "--mnkl 1024,512,512,1 --mma_tiler_mn 256,256 --cluster_shape_mn 4,2"),
    _block_scaled("blockscaled_gemm, MXFP6 e2m3, 2-CTA", MXFP8.replace("Float8E4M3FN", "Float6E2M3FN"),
                  "--mnkl 512,512,512,1 --mma_tiler_mn 256,256 --cluster_shape_mn 2,1"),
    _block_scaled("blockscaled_gemm, MXFP8, M-major A, N-major B", MXFP8,
                  "--mnkl 256,256,512,1 --a_major m --b_major n"),
    Case("blockscaled_gemm, amax", f"{BLOCK_SCALED_FOLDER}/dense_blockscaled_gemm_persistent_amax.py",
         "--mnkl 256,256,512,1"),
    Case("blockscaled_gemm, prefetch", f"{BLOCK_SCALED_FOLDER}/dense_blockscaled_gemm_persistent_prefetch.py",
         "--mnkl 256,256,512,1"),
    Case("grouped_blockscaled_gemm", "blackwell/kernel/blockscaled_grouped_gemm/grouped_blockscaled_gemm.py",
         "--num_groups 2 --problem_sizes_mnkl (256,128,256,1),(128,256,512,1)"),
    Case("nvfp4_gemm_0", f"{TUTORIAL}/nvfp4_gemm_0.py", "--mnkl 512,512,512,1"),
    Case("nvfp4_gemm_1", f"{TUTORIAL}/nvfp4_gemm_1.py", "--mnkl 512,512,512,1"),
    Case("dense_gemm_software_pipeline", f"{DENSE}/dense_gemm_software_pipeline.py",
         f"--mnkl 256,256,256,1 {FP16_GEMM}"),
    Case("dense_gemm_persistent_prefetch", f"{DENSE}/dense_gemm_persistent_prefetch.py",
         f"--mnkl 256,256,256,1 {FP16_GEMM}"),
    Case("grouped_gemm", "blackwell/kernel/grouped_gemm/grouped_gemm.py",
         "--num_groups 3 --problem_sizes_mnkl (128,128,128,1),(512,128,128,1),(128,256,128,1)"),
    Case("blockwise_gemm, fp8", f"{BLOCKWISE}/blockwise_gemm.py", "--mnkl 256,256,512,1"),
    Case("contiguous_grouped_gemm, fp8", f"{BLOCKWISE}/contiguous_grouped_gemm.py", "--mnkl 256,256,512,2"),
    Case("masked_grouped_gemm, fp8", f"{BLOCKWISE}/masked_grouped_gemm.py", "--mnkl 256,256,512,2"),
    Case("mixed_input_fmha_decode, int8", "blackwell/kernel/attention/mixed_input_fmha/mixed_input_fmha_decode.py",
         "--s 512 --h_q 8 --h_k 1 --iterations 1"),
    Case("mixed_input_fmha_decode, int4", "blackwell/kernel/attention/mixed_input_fmha/mixed_input_fmha_decode.py",
         "--s 512 --h_q 16 --h_k 1 --kv_dtype Int4 --iterations 1"),
    Case("rmsnorm, bf16", "blackwell/kernel/rmsnorm/rmsnorm.py",
         "--M 64 --N 1024 --warmup_iterations 0 --iterations 1"),
    Case("blockscaled_gemm, NVFP4, K 96, 2 x 4 cluster", BLOCK_SCALED_103,
         "--mnkl 512,1024,768,1 --sf_dtype Float8E4M3FN --mma_tiler_mn 256,256 --cluster_shape_mn 2,4", "sm_103a"),
    Case("blockscaled_gemm, NVFP4, K 96", BLOCK_SCALED_103,
         "--mnkl 256,256,768,1 --sf_dtype Float8E4M3FN --mma_tiler_mn 128,256 --cluster_shape_mn 1,1", "sm_103a"),
    Case("blockscaled_gemm, MXFP4, K 96, 2-CTA", BLOCK_SCALED_103,
         "--mnkl 512,512,768,1 --sf_vec_size 32 --mma_tiler_mn 256,256 --cluster_shape_mn 2,1", "sm_103a"),
    Case("hopper dense_gemm", f"{HOPPER}/dense_gemm/dense_gemm.py", "--mnkl 256,256,256,1", "sm_90a"),
    Case("hopper dense_gemm, multicast", f"{HOPPER}/dense_gemm/dense_gemm.py",
         "--mnkl 512,512,256,1 --cluster_shape_mn 2,2 --a_major m --b_major n", "sm_90a"),
    Case("hopper dense_gemm_persistent", f"{HOPPER}/dense_gemm/dense_gemm_persistent.py",
         "--mnkl 256,512,256,1 --cluster_shape_mn 1,2", "sm_90a"),
    Case("hopper dense_gemm_fp8_2xacc", f"{HOPPER}/dense_gemm/dense_gemm_fp8_2xacc.py",
         "--mnkl 256,256,512,1", "sm_90a"),
    Case("hopper grouped_gemm", f"{HOPPER}/grouped_gemm/grouped_gemm.py",
         "--num_groups 2 --problem_sizes_mnkl (256,128,128,1),(128,256,256,1)", "sm_90a"),
    Case("hopper cta_norm", f"{HOPPER}/cta_norm/cta_norm.py",
         "--M 64 --N 1024 --warmup_iterations 0 --iterations 1", "sm_90a"),
    _hopper_attention("hopper fmha, fp16", FP16, "1,256,2,128"),
    _hopper_attention("hopper fmha, fp16, d 64, causal", FP16, "1,256,2,64", "--is_persistent --is_causal"),
    _hopper_attention("hopper fmha, fp8", FP8, "1,256,2,128"),
)  # fmt: skip
