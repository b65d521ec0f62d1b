"""Communication kernels are told by name, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from traceflow.trace.communication_names import TABLE, recognise


@pytest.mark.parametrize(
    ("name", "library", "operation"),
    [
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "nccl", "allreduce"),
        ("ncclReduceScatterRingLLKernel_sum_f16(ncclColl)", "nccl", "reduce_scatter"),
        ("ncclReduceRingLLKernel_sum_f32(ncclColl)", "nccl", "reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "nccl", "allreduce"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "nccl", "broadcast"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "nccl", "send_recv"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl", "allgather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(args)", "nccl", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(args)", "nccl", "reduce"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "nccl", "unknown"),
        ("ncclDevKernel_Generic_1(args)", "nccl", "unknown"),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f8e5m2(args)", "nccl", "allreduce"),
        ("_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgs", "nccl", "allreduce"),
        ("mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", "msccl", "allreduce"),
        ("void mscclpp::collective::allreduceRsAg<__half>(int*)", "msccl++", "allreduce"),
        ("nvshmemi_barrier_all_kernel", "nvshmem", "barrier"),
        ("void nvshmem_alltoall_kernel<float>(float*)", "nvshmem", "all_to_all"),
        (
            "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
            "symmetric memory",
            "allreduce",
        ),
        (
            "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>()",
            "symmetric memory",
            "allreduce",
        ),
        ("void (anonymous namespace)::multimem_all_gather_kernel<16>()", "symmetric memory", "allgather"),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", "deep_ep", "dispatch"),
        ("void deep_ep::internode::combine<false, 8>(int4*)", "deep_ep", "combine"),
        ("deep_ep::intranode::cached_notify_combine<4>(void**)", "deep_ep", "combine"),
        ("void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)", "deep_ep", "dispatch"),
        ("void fused::ep::internode::dispatch<7168>(void*)", "deep_ep", "dispatch"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "custom", "allreduce"),
        ("void aiter::cross_device_reduce_2stage<bf16, 8, false>(void*)", "custom", "allreduce"),
        (
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()",
            "custom",
            "allreduce",
        ),
        ("oneccl_allreduce_pcie", "oneccl", "allreduce"),
        ("gloo:all_reduce", "gloo", "allreduce"),
        ("gloo:recv", "gloo", "recv"),
    ],
)
def test_a_communication_kernel_is_recognised(name: str, library: str, operation: str) -> None:
    assert recognise(name) == (library, operation)


@pytest.mark.parametrize(
    "name",
    [
        "__amd_rocclr_copyBuffer",
        "__amd_rocclr_fillBufferAligned",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
        "void splitKreduce_kernel<32, 16, int, float>(float*)",
        "void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void*)",
        "void cub::DeviceReduceSingleTileKernel<x>()",
        "void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16>()",
        "triton_poi_fused_add_all_reduce_4",
        "deep_ep::layout::get_dispatch_layout<256, 32, 8>(long*)",
        "my_nccl_like_gemm",
        "",
    ],
)
def test_other_kernels_are_not(name: str) -> None:
    assert recognise(name) is None


def test_every_entry_can_be_reached() -> None:
    assert len({pattern for pattern, _, _ in TABLE}) == len(TABLE)
    assert all(library and operation for _, library, operation in TABLE)
