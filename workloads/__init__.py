"""The workloads of this suite, each a page of ordinary PyTorch."""

from gpugate.workload import Workload
from workloads import (
    ddp_scaling,
    driving,
    host_preparation,
    llm,
    operators,
    picture_files,
    requests,
    resnet18_training,
    resnet50_inference,
    slow_storage,
    streaming,
    two_layer_net,
    video,
)

WORKLOADS: tuple[Workload, ...] = (
    *resnet50_inference.WORKLOADS,
    *two_layer_net.WORKLOADS,
    *resnet18_training.WORKLOADS,
    *driving.WORKLOADS,
    *streaming.WORKLOADS,
    *host_preparation.WORKLOADS,
    *video.WORKLOADS,
    *operators.WORKLOADS,
    *llm.WORKLOADS,
    *requests.WORKLOADS,
    *slow_storage.WORKLOADS,
    *picture_files.WORKLOADS,
    *ddp_scaling.WORKLOADS,
)
