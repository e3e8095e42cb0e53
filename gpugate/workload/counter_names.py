"""The counters of a side, by name: a measurement contains them, and a contract may limit them.

They are of one step where their meaning names nothing else. A sick machine makes those of times worse, like times. The
others count events, which it does not change.
"""

from collections.abc import Mapping

_EVENTS_ON_CUDA: Mapping[str, str] = {
    "kernel_launches": "launch calls (cudaLaunchKernel*, cuLaunchKernel*)",
    "graph_launches": "CUDA graph launches",
    "kernels": "kernels that ran on the device",
    "framework_kernels": "kernels of PyTorch itself and of Triton, no library's choice",
    "tensor_core_kernels": "kernels whose name shows tensor cores",
    "host_to_device_copies": "copies from host to device",
    "device_to_host_copies": "copies from device to host",
    "device_to_device_copies": "copies within the device",
    "pageable_copies": "copies to or from pageable host memory",
    "host_to_device_bytes": "bytes from host to device",
    "device_to_host_bytes": "bytes from device to host",
    "device_to_device_bytes": "bytes within the device",
    "memsets": "memsets",
    "synchronizing_calls": "CUDA calls that block the thread that runs the steps until the device is done",
    "streams": "streams that ran something",
    "grown_bytes": "device memory that a step leaves allocated, in bytes",
    "autotuned": "1 where cuDNN, TensorRT or Inductor chose kernels by timing them, which may end otherwise next time",
    "peak_bytes": "peak device memory of the side, in bytes",
}
_TIMES_ON_CUDA: Mapping[str, str] = {
    "api_ms": "CPU time inside the CUDA API, under the profiler, which makes every call and graph node dearer, in ms",
    "enqueue_ms": "host time to enqueue one step, without the profiler: an upper bound of its CUDA API time, in ms",
    "kernel_ms": "sum of the times of all kernels, in ms; of kernels that overlap, each counts in full",
    "host_to_device_ms": "sum of the times of copies from host to device, in ms",
    "device_to_host_ms": "sum of the times of copies from device to host, in ms",
    "device_to_device_ms": "sum of the times of copies within the device, in ms",
    "longest_kernels_mean_ms": "mean of the 15 longest kernels, in ms",
    "active_fraction": "union of device activity over the time from first to last",
    "kernel_fraction": "union of kernels over the time from first to last device activity",
    "copy_fraction": "union of copies over the time from first to last device activity",
    "overlap_fraction": "share of the copies' time during which a kernel ran",
    "copy_share": "bytes that a step needs, over its time, as a share of a copy within the device's memory",
    "matmul_share": "FLOPs that a step needs, over its time, as a share of the machine's fastest matrix product",
    "bus_share": "achieved PCIe bandwidth in the busier direction, as a share of the page-locked copy rate",
    "cached_step_ms": "time of a step on cached data, without loading and copying and without the profiler, in ms",
    "data_path_efficiency": "time of a step on cached data over its real time, without the profiler",
    "whole_run_speedup": "time of the reference's whole run, start-up included, over this side's; no count of a step",
    "compile_s": "time that torch.compile took for the side, in one build, in s: less with kernels of a cache on disk",
    "exposed_communication": "share of a step in which a collective runs and no other kernel",
    "collective_bus_share": "bus bandwidth of a step's collectives, as a share of an all-reduce by itself",
}
_EVENTS_ON_EVERY_MACHINE: Mapping[str, str] = {
    "ranks": "processes of the job, one for each GPU",
    "collectives": "collectives between ranks, such as the all-reduce of a bucket",
    "collective_bytes": "bytes of the messages of collectives: of each, the larger one of a rank's input and output",
    "early_collectives": "collectives that are called before the backward pass computes its last gradient",
    "operators": "operators of PyTorch that a side on a CPU calls, by itself or within another operator",
    "engine_layers": "layers of a compiled engine, such as TensorRT's: two operators that are fused are one layer",
    "minor_faults": "page faults of this process that needed no disk, in a timed step",
}
_TIMES_ON_EVERY_MACHINE: Mapping[str, str] = {
    "rank_lag": "time for which other ranks wait for the slowest one, as a share of a step, under the profiler",
    "wait_ms": "mean of the waits in timed steps, such as for a batch of the loader, in ms",
    "wait_p99_ms": "the longest of 99 % of the waits in timed steps, such as from one token to the next, in ms",
    "cpu_ms": "user and system CPU time of this process and its workers, in a timed step, in ms",
    "workers_cpu_ms": "the part of cpu_ms that worker processes spent",
    "spinning": "1 where this process's threads may wait in a loop: its part of cpu_ms then says little of its work",
    "major_faults": "page faults of this process that waited for a disk, in a timed step",
    "voluntary_switches": "context switches of this process to wait for something, in a timed step",
    "involuntary_switches": "context switches of this process forced by other work on its cores, in a timed step",
    "other_cores": "cores that other processes kept busy while both sides were timed",
    "throttled_periods": "share of the periods in which a quota of CPU time throttled the process, meanwhile",
}
_OF_COMPILER: Mapping[str, str] = {
    "compiled_graphs": "graphs that torch.compile made for the side, in one build",
    "graph_breaks": "graph breaks in what torch.compile compiled for the side, in one build",
    "recompilations": "compilations of a function that the side had compiled before, in one build",
    "eager_frames": "functions that torch.compile failed to compile and runs eagerly, in one build",
}
_ON_EVERY_MACHINE = {**_EVENTS_ON_EVERY_MACHINE, **_TIMES_ON_EVERY_MACHINE, **_OF_COMPILER}
COUNTER_MEANING: Mapping[str, str] = {**_EVENTS_ON_CUDA, **_TIMES_ON_CUDA, **_ON_EVERY_MACHINE}
COUNTER_NAMES = tuple(COUNTER_MEANING)
COMPILER_COUNTERS = tuple(_OF_COMPILER)
CPU_COUNTERS = frozenset(_ON_EVERY_MACHINE)
OF_TIME = frozenset({**_TIMES_ON_CUDA, **_TIMES_ON_EVERY_MACHINE})
# The times that a bill has beside all counts: what they count is the side's own, whatever else its host does.
_BILLED_TIMES = (
    "kernel_ms",
    "host_to_device_ms",
    "device_to_host_ms",
    "device_to_device_ms",
    "cpu_ms",
    "workers_cpu_ms",
    "spinning",
    "major_faults",
    "voluntary_switches",
    "involuntary_switches",
)
BILLED = frozenset(COUNTER_NAMES) - OF_TIME | frozenset(_BILLED_TIMES)
# Counts that repeat exactly. Memsets are none of these: they come with the algorithm that cuDNN happens to pick in a
# process. Nor are streams: the sessions of equal decoders ran on 8 and on 9. Operators of a CPU were as many in two
# processes of each of 45 cases, among them pipelines with threads and workers, compiled code, and jobs of ranks.
EXACT = (
    "graph_launches",
    "framework_kernels",
    "host_to_device_copies",
    "device_to_host_copies",
    "device_to_device_copies",
    "host_to_device_bytes",
    "device_to_host_bytes",
    "device_to_device_bytes",
    "pageable_copies",
    "synchronizing_calls",
    "operators",
)
# One convolution is one kernel by one algorithm and two by another, with another workspace. Where those are timed
# against each other, machines of one model end the race differently.
EXACT_UNLESS_AUTOTUNED = ("kernel_launches", "kernels", "peak_bytes")
# Of the others, the larger value is the worse one.
MORE_IS_BETTER = (
    "graph_launches",
    "tensor_core_kernels",
    "active_fraction",
    "kernel_fraction",
    "overlap_fraction",
    "bus_share",
    "copy_share",
    "matmul_share",
    "data_path_efficiency",
    "whole_run_speedup",
)
