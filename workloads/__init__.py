"""The workloads of this suite, each a page of ordinary PyTorch."""

import importlib

from gpugate.workload import Workload

PAGES = (
    *("resnet50_inference", "two_layer_net", "resnet18_training", "driving", "streaming", "host_preparation", "video"),
    *("operators", "migration", "attention", "attention_decode", "mixture_of_experts", "diffusion_step"),
    *("gpu_operators", "memory_access", "low_precision", "float8_training", "compile_modes", "optimizer_step"),
    *("activation_memory", "llm", "llm_serving", "slow_storage", "ddp_scaling"),
)
WORKLOADS: tuple[Workload, ...] = tuple(
    workload for page in PAGES for workload in importlib.import_module(f"{__name__}.{page}").WORKLOADS
)
