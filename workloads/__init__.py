"""The workloads of this suite, each a page of ordinary PyTorch."""

from gpugate.workload import Workload
from workloads import (
    activation_memory,
    attention,
    attention_decode,
    compile_modes,
    ddp_scaling,
    diffusion_step,
    driving,
    float8_training,
    gpu_operators,
    host_preparation,
    llm,
    llm_serving,
    low_precision,
    memory_access,
    migration,
    mixture_of_experts,
    operators,
    optimizer_step,
    picture_files,
    requests,
    resnet18_training,
    resnet50_inference,
    slow_storage,
    streaming,
    two_layer_net,
    video,
)

MODULES = (
    *(resnet50_inference, two_layer_net, resnet18_training, driving, streaming, host_preparation, video),
    *(operators, migration, attention, attention_decode, mixture_of_experts, diffusion_step, gpu_operators),
    *(memory_access, low_precision, float8_training, compile_modes, optimizer_step, activation_memory),
    *(llm, llm_serving, requests, slow_storage, picture_files, ddp_scaling),
)
WORKLOADS: tuple[Workload, ...] = tuple(workload for module in MODULES for workload in module.WORKLOADS)
