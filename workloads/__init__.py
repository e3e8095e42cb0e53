"""What runs: the workloads of this suite, each a page of ordinary PyTorch."""

from gpugate.workload import Workload
from workloads import resnet50_inference, two_layer_net

WORKLOADS: tuple[Workload, ...] = (*resnet50_inference.WORKLOADS, *two_layer_net.WORKLOADS)
