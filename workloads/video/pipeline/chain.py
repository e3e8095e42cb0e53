"""The stages of a plan, each a function of a batch of frames, with the necessary copies between host and device.

Called in a row they are a pipeline without overlap; a conveyor calls each from a thread and a stream of its own. An
event marks the end of the work that a stage has enqueued, so that the next stage waits for that work alone, on the
device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gpugate.workload import Context, Side
from workloads.parts.graph_capture import recorded
from workloads.parts.stages import stage
from workloads.video import composite, preprocess, segment
from workloads.video.clip.colour import LOST_LEVELS, nv12_from_rgb, rgb_from_nv12
from workloads.video.clip.video_file import VideoError, VideoInfo
from workloads.video.flow import Conveyor
from workloads.video.needs import BATCH
from workloads.video.pipeline.plan import Plan

if TYPE_CHECKING:
    from workloads.video.decode.decoding import Decoder

Pixels = NDArray[np.uint8]
Clock = Callable[[str, int], AbstractContextManager[object]]
Work = Callable[..., Tensor]
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Batch:
    """Frames `first`, `first` + 1, ... of a clip, in BGR on the host or in NV12 on the device.

    `bgr` is uint8 [n, H, W, 3], `nv12` uint8 [n, H*3//2, W]; `ready` is the event after the device's last work on it.
    """

    first: int
    bgr: Pixels | None = None
    nv12: Tensor | None = None
    ready: torch.cuda.Event | None = None

    def __len__(self) -> int:
        return len(self.on_host if self.nv12 is None else self.nv12)

    @property
    def on_host(self) -> Pixels:
        assert self.bgr is not None, "these frames are on the device alone"  # noqa: S101
        return self.bgr

    @property
    def on_device(self) -> Tensor:
        assert self.nv12 is not None, "these frames are on the host alone"  # noqa: S101
        return self.nv12


class Chain:
    """The stages of a plan; `write` takes frames in the form of the plan's encoder.

    Every stage works within the context that `clock` gives for its name and its first frame. A clip that ends too early
    ends like any other, so that its decoded frames are processed; `shortage` reports it.

    A decoder may decode ahead while the chain is built. `before_capture` waits until it rests: calls of CUDA by its
    libraries may spoil a graph that is being captured.
    """

    def __init__(
        self,
        plan: Plan,
        context: Context,
        info: VideoInfo,
        write: Callable[[Any], object],
        clock: Clock = stage,
        before_capture: Callable[[], object] = lambda: None,
    ) -> None:
        self.plan, self.device = plan, context.device
        self.shortage: VideoError | None = None
        self._info, self._write, self._clock = info, write, clock
        self._decoded = 0
        size = preprocess.input_size(info.height, info.width)
        with ExitStack() as built:  # the built parts are closed where a later one fails
            # The first capture of all: it waits for the decoder, which then rests until its frames are taken.
            self._segment = _segmenter(plan, replace(context, items=BATCH), size, before_capture)
            built.callback(self._segment.close)
            self._preprocess = _preprocessing(plan, context, info)
            self._composite = _compositing(plan, context, info, self._segment)
            to_rgb = partial(rgb_from_nv12, matrix=info.matrix)
            self._rgb = in_one_launch(context, to_rgb, partial(noise_in_nv12, context, info)) if plan.in_rgb else to_rgb
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()  # cuda only  # other streams use what is made here
            self._closing = built.pop_all()

    @property
    def engaged(self) -> Callable[[], str | None]:
        """`Side.engaged` of the segmenter, the stage whose library may refuse a part of the work."""
        return self._segment.engaged

    @property
    def layers(self) -> Callable[[], Sequence[str]] | None:
        """`Side.layers` of the segmenter, which may be a compiled engine."""
        return self._segment.layers

    def decode(self, decoder: Any) -> Batch | None:
        """The decoder's next frames, up to BATCH; None after the last one."""
        with self._clock("decode", self._decoded):
            try:
                frames = decoder.read(BATCH)
            except VideoError as error:
                if not self._decoded:
                    raise
                self.shortage = error
                return None
            if not len(frames):
                return None
            batch = Batch(self._decoded, **{"bgr" if isinstance(frames, np.ndarray) else "nv12": frames})
            self._decoded += len(frames)
            return self._handed_on(batch)

    def compute(self, batch: Batch) -> Batch:
        """Preprocesses, segments and composites the batch."""
        self._taken(batch)
        batch = self._on_device(batch)
        logits = self.logits(batch)
        with self._clock("composite", batch.first):
            return self._handed_on(self._composite(batch, logits))

    def logits(self, batch: Batch) -> Tensor:
        """float32 [n, classes, h, w] on the device; the next call may overwrite it."""
        with self._clock("preprocess", batch.first):
            frames = self._preprocess(batch)
        with self._clock("segment", batch.first):
            return self._segment.step(_whole(frames))[: len(batch)]

    def encode(self, batch: Batch) -> Batch:
        """Passes the batch to the encoder, in the encoder's form; returns the batch."""
        self._taken(batch)
        with self._clock("encode", batch.first):
            self._write(self._for_encoder(batch))
        return self._handed_on(batch)

    def nv12_of(self, batch: Batch, places: list[int]) -> Pixels:
        """uint8 [n, H*3//2, W], NV12 in host memory, of the frames at these places."""
        self._taken(batch)
        nv12 = self._uploaded(batch.on_host[places]) if batch.nv12 is None else batch.nv12[places]
        return nv12.cpu().numpy()

    def close(self) -> None:
        self._closing.close()

    def _on_device(self, batch: Batch) -> Batch:
        """Copies the batch to the device, where a stage of the plan needs it there."""
        if not self.plan.frames_on_device or batch.nv12 is not None:
            return batch
        with self._clock("upload", batch.first):
            return replace(batch, nv12=self._uploaded(batch.on_host))

    def _for_encoder(self, batch: Batch) -> Pixels | Tensor:
        if self.plan.encode == "mp4v":
            return batch.on_host if batch.nv12 is None else self._downloaded(batch.nv12)
        nv12 = self._uploaded(batch.on_host) if batch.nv12 is None else batch.nv12
        return self._rgb(nv12) if self.plan.in_rgb else nv12

    def _uploaded(self, bgr: Pixels) -> Tensor:
        rgb = torch.from_numpy(bgr).to(self.device).movedim(3, 1).flip(1).contiguous()
        return nv12_from_rgb(rgb, self._info.matrix, LOST_LEVELS[self._info.matrix])

    def _downloaded(self, nv12: Tensor) -> Pixels:
        bgr: Pixels = rgb_from_nv12(nv12, self._info.matrix).flip(1).movedim(1, 3).contiguous().cpu().numpy()
        return bgr

    def _handed_on(self, batch: Batch) -> Batch:
        if self.device.type != "cuda" or batch.nv12 is None:
            return batch
        ready = torch.cuda.current_stream(self.device).record_event()  # cuda only
        return replace(batch, ready=ready)  # cuda only

    def _taken(self, batch: Batch) -> None:
        if batch.ready is not None and batch.nv12 is not None:
            current = torch.cuda.current_stream(self.device)  # cuda only
            current.wait_event(batch.ready)  # cuda only
            batch.nv12.record_stream(current)  # cuda only


def _whole(frames: Tensor) -> Tensor:
    """A batch of BATCH frames, the size that networks are captured for; missing frames are zero."""
    return frames if len(frames) == BATCH else F.pad(frames, (0, 0, 0, 0, 0, 0, 0, BATCH - len(frames)))


def _segmenter(plan: Plan, context: Context, size: tuple[int, int], before_capture: Callable[[], object]) -> Side:
    """The segmenter, built on noise where the plan needs an example: frames of a clip would have to be drawn first."""
    if plan.segment == "eager":
        return segment.baseline(context)
    random = torch.Generator(context.device).manual_seed(context.seed)
    noise = torch.randn(context.items, 3, *size, device=context.device, generator=random)
    if plan.segment == "tensorrt":
        before_capture()  # other stages are captured next
        return segment.tensorrt_fp16(context, noise)
    return segment.cudnn_fused(context, noise, before_capture)


def noise_in_nv12(context: Context, info: VideoInfo) -> tuple[Tensor]:  # cuda only
    """A batch to capture work on: frames of a clip would have to be drawn first."""
    random = torch.Generator(context.device).manual_seed(context.seed)
    shape = BATCH, info.height * 3 // 2, info.width
    return (torch.randint(256, shape, dtype=torch.uint8, device=context.device, generator=random),)


def _preprocessing(plan: Plan, context: Context, info: VideoInfo) -> Callable[[Batch], Tensor]:
    if plan.preprocess == "opencv":
        return lambda batch: preprocess.on_host(batch.on_host, context.device)
    run: Work = preprocess.make_stage(plan.preprocess, info.height, info.width, context.device, info.matrix)
    if plan.preprocess == "triton":
        run(*noise_in_nv12(context, info))  # compiles it before the stages begin
    if plan.preprocess == "torch":
        run = in_one_launch(context, run, partial(noise_in_nv12, context, info))
    return lambda batch: run(batch.on_device)


def _compositing(plan: Plan, context: Context, info: VideoInfo, segmenter: Side) -> Callable[[Batch, Tensor], Batch]:
    if plan.composite == "opencv":
        return lambda batch, logits: Batch(batch.first, bgr=composite.on_host(batch.on_host, logits.cpu()))
    run: Work = composite.make_stage(plan.composite, info.height, info.width, context.device)

    def examples() -> tuple[Tensor, Tensor]:  # cuda only
        frames = torch.zeros(BATCH, 3, *preprocess.input_size(info.height, info.width), device=context.device)
        return *noise_in_nv12(context, info), segmenter.step(frames)

    if plan.composite == "triton":
        run(*examples())
    if plan.composite == "torch":
        run = in_one_launch(context, run, examples)
    return lambda batch, logits: Batch(batch.first, nv12=run(batch.on_device, logits))


def in_one_launch(context: Context, work: Work, examples: Callable[[], Sequence[Tensor]]) -> Work:
    """`work` for tensors like the examples, which are made where graphs are captured; elsewhere `work` itself."""
    if context.device.type != "cuda" or not context.capture_graphs:
        return work
    return OneLaunch(work, examples())


class OneLaunch:
    """`work` as a CUDA graph, for one stream at a time; tensors of other shapes go through it kernel by kernel.

    A stage is some dozen small kernels, each launched from Python. Where every stage has a thread, all of them share
    one interpreter: a single launch leaves it to the others.

    The inputs are copied to the graph's buffers, and the outputs are memory of their own.
    """

    def __init__(self, work: Work, examples: Sequence[Tensor]) -> None:
        self._work, self._inputs = work, [each.clone() for each in examples]
        stream = torch.cuda.Stream(examples[0].device)  # type: ignore[no-untyped-call]
        self._graph, self._result = recorded(lambda: work(*self._inputs), stream)

    def __call__(self, *tensors: Tensor) -> Tensor:
        if any(given.shape != read.shape for given, read in zip(tensors, self._inputs, strict=True)):
            return self._work(*tensors)
        for given, read in zip(tensors, self._inputs, strict=True):
            read.copy_(given)
        self._graph.replay()
        return self._result.clone()


def decoder_of(plan: Plan, path: Path, device: torch.device, loop: bool) -> Decoder:
    """The plan's decoder of the video. Raises VideoError for a video that is refused."""
    if plan.decode == "opencv":
        from workloads.video.decode.decoding import HostDecoder

        return HostDecoder(path, loop)
    from workloads.video.decode.nvdec import decode_on_device  # cuda only

    return decode_on_device(path, device, plan.sessions, loop)  # cuda only


class Flow(Generic[_Result]):
    """The flow: `decoder` gives frames; `last` gets every computed batch, and `take` returns its results.

    Where the chain's plan is overlapped, decoding, computing and `last` each have a thread and a stream of their own;
    `stream` is for the caller of `take`. On a CPU it is None.
    """

    def __init__(self, chain: Chain, decoder: Decoder, last: Callable[[Batch], _Result]) -> None:
        self._chain, self._last = chain, last
        self._decode = partial(chain.decode, decoder)
        self.stream = another_stream(chain.device)
        self._conveyor: Conveyor[_Result] | None = None
        self._streams = [self.stream]
        if chain.plan.overlapped:
            self._streams += [another_stream(chain.device) for _ in range(3)]
            decoding, computing, encoding = (partial(in_thread, chain.device, stream) for stream in self._streams[1:])
            stages = (
                ("decode", self._decode, decoding),
                ("compute", chain.compute, computing),
                ("encode", last, encoding),
            )
            self._conveyor = Conveyor(stages)

    def take(self) -> _Result | None:
        """The next result, in the order of the clip; None after the last one. Raises any error of a stage."""
        if self._conveyor is not None:
            return self._conveyor.take()
        with on_stream(self.stream):
            batch = self._decode()
            return None if batch is None else self._last(self._chain.compute(batch))

    def settle(self) -> None:
        """Waits until no batch is being processed, see `Conveyor.settle`."""
        if self._conveyor is not None:
            self._conveyor.settle()

    def synchronize(self) -> None:
        """Waits until the device is done with all of it too."""
        for stream in self._streams:
            if stream is not None:
                stream.synchronize()  # cuda only

    def close(self) -> None:
        if self._conveyor is not None:
            self._conveyor.close()


def own_stream(device: torch.device) -> AbstractContextManager[object]:
    """A stream of the calling thread's own; nothing on a CPU."""
    return in_thread(device, another_stream(device))


def in_thread(device: torch.device, stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """The context of the calling thread, which may be a new one."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # cuda only
    return on_stream(stream)


def another_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream other than the default one, for which some libraries make all others wait; None on a CPU."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def on_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)
