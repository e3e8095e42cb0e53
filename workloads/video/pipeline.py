"""All stages together: from a file of video to another one, batch after batch or every stage at once on another batch.

A rung of the ladder is a decoder, the network, the stages around it, and an encoder. A step takes the next batch of the
clip, round and round, and returns the record at the encoder: float32 [BATCH, 2], see `Arrivals`, times the step's
stamps. The record is right where each frame has its number and the luma of the reference's composite. Files are written
all the time, one for each round.
"""

from __future__ import annotations

import functools
import io
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, cycle, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gpugate.workload import (
    Context,
    Contract,
    DeviceKind,
    DisprovedError,
    Engine,
    Limit,
    Optimization,
    Proof,
    Side,
    Size,
    Workload,
)
from workloads.parts.graph_capture import replayed
from workloads.parts.kept_files import key_of, read_or_make
from workloads.parts.random_inputs import stamps
from workloads.parts.stages import stage
from workloads.video import composite, encoders, preprocess, segment
from workloads.video.arrivals import COMPOSITED_LEVELS, Arrivals, luma_of_bgr, psnr_db
from workloads.video.clip import (
    BATCH,
    CLIPS,
    EXACT,
    GPU,
    ON_HOST,
    VIDEO_ENGINES,
    VIDEO_SETTING,
    is_users,
    kind_of,
    one_thread_on_cpu,
    source,
)
from workloads.video.composite import LEAST_COMPOSITED_DB
from workloads.video.decode import HostDecoder, HostPlanesDecoder, MakeDecoder, ParallelDecoder
from workloads.video.encode import COMPOSITED_BYTES, TEST_READS_BYTES, compressed_only, quality
from workloads.video.encoders import Encoder, MotionJpeg, Mp4v, Recorder, why_not
from workloads.video.frames import LOST_LEVELS, VideoInfo, nv12_from_rgb, rgb_from_nv12
from workloads.video.segment import SEGMENTER_SETTING, TENSOR_CORES, TENSORRT, fit_key, own_checkpoint

Pixels = NDArray[np.uint8]  # BGR [n, H, W, 3] in host memory; elsewhere frames are NV12, a tensor uint8 [n, H*3//2, W]
Clock = Callable[[str, int], AbstractContextManager[object]]
Work = Callable[..., Tensor]


@dataclass(frozen=True)
class Place:
    """The device and the video for which stages are built, and the clock of a stage's name and its first frame.

    A decoder may decode ahead meanwhile. `settle` waits until it rests: calls of CUDA by its libraries may spoil a
    graph that is being captured.
    """

    context: Context
    info: VideoInfo
    settle: Callable[[], object] = lambda: None
    clock: Clock = stage

    @property
    def device(self) -> torch.device:
        return self.context.device

    @property
    def size(self) -> tuple[int, int, torch.device]:
        """Height, width and device, as stages take them."""
        return self.info.height, self.info.width, self.device

    def frames(self) -> Tensor:
        """Noise for the network, float32 [BATCH, 3, h, w]: frames of a clip would have to be drawn first."""
        random = torch.Generator(self.device).manual_seed(self.context.seed)
        shape = BATCH, 3, *preprocess.input_size(self.info.height, self.info.width)
        return torch.randn(shape, device=self.device, generator=random)

    def nv12(self) -> Tensor:
        """Frames by which a stage that has nothing to tune is captured or compiled: uint8 [BATCH, H*3//2, W]."""
        return torch.zeros(BATCH, *self.info.nv12_shape, dtype=torch.uint8, device=self.device)

    def one_launch(
        self, work: Callable[..., Tensor], examples: Callable[[], Sequence[Tensor]]
    ) -> Callable[..., Tensor]:
        """`work` as a CUDA graph, for one stream at a time, with outputs in memory of their own.

        A stage is some dozen small kernels, each launched from Python. Where every stage has a thread, all of them
        share one interpreter: a single launch leaves it to the others.
        """
        if self.device.type == "cpu" or not self.context.capture_graphs:
            return work
        self.settle()  # cuda only
        replay = replayed(self.context, work, *(each.clone() for each in examples()))  # cuda only
        return lambda *tensors: replay(*tensors).clone()  # cuda only

    def upload(self, bgr: Pixels) -> Tensor:
        rgb = torch.from_numpy(bgr).to(self.device).movedim(3, 1).flip(1).contiguous()
        return nv12_from_rgb(rgb, self.info.matrix, LOST_LEVELS[self.info.matrix])

    def download(self, nv12: Tensor) -> Pixels:
        bgr: Pixels = rgb_from_nv12(nv12, self.info.matrix).flip(1).movedim(1, 3).contiguous().cpu().numpy()
        return bgr


# --- the network ------------------------------------------------------------------------------------------------------


def eager(place: Place) -> Side:
    return segment.baseline(place.context)


def cudnn_fused(place: Place) -> Side:
    return segment.cudnn_fused(place.context, place.frames(), place.settle)


def tensorrt(place: Place) -> Side:  # cuda only
    place.settle()  # an engine may be tuned now
    return segment.tensorrt_fp16(place.context, place.frames())


# --- the stages around the network, in three places -------------------------------------------------------------------
# Each returns a function of the number of the first frame and of frames; it returns their composites.

Compute = Callable[[int, Any], Any]
Network = Callable[[Tensor], Tensor]  # frames, float32 [n, 3, h, w], to logits, float32 [n, classes, h, w]


def on_host(place: Place, network: Network) -> Compute:
    """OpenCV before and after the network: BGR to BGR."""

    def compute(first: int, bgr: Pixels) -> Pixels:
        with place.clock("preprocess", first):
            frames = preprocess.on_host(bgr, place.device)  # float32 [n, 3, h, w]
        with place.clock("segment", first):
            logits = network(frames)  # float32 [n, classes, h, w]
        with place.clock("composite", first):
            return composite.on_host(bgr, logits)  # uint8 [n, H, W, 3]

    return compute


def composite_on_device(place: Place, network: Network) -> Compute:
    """OpenCV before the network, and PyTorch after it by one launch: BGR to NV12."""
    blend = place.one_launch(composite.OnDevice(*place.size), lambda: (place.nv12(), network(place.frames())))
    return _on_device(place, lambda bgr, nv12: preprocess.on_host(bgr, place.device), network, blend)


def on_device(place: Place, network: Network) -> Compute:
    """PyTorch before and after the network, by a launch each: NV12, or BGR that is uploaded, to NV12."""
    sample = place.one_launch(preprocess.OnDevice(*place.size, place.info.matrix), lambda: (place.nv12(),))
    blend = place.one_launch(composite.OnDevice(*place.size), lambda: (place.nv12(), network(place.frames())))
    return _on_device(place, lambda decoded, nv12: sample(nv12), network, blend)


def in_triton(place: Place, network: Network) -> Compute:
    """Kernels in Triton before and after the network: NV12 to NV12."""
    sample = preprocess.in_triton(*place.size, place.info.matrix)
    blend = composite.in_triton(*place.size)
    blend(place.nv12(), network(sample(place.nv12())))  # compiles both before the stages begin
    return _on_device(place, lambda decoded, nv12: sample(nv12), network, blend)


def in_cvcuda(place: Place, network: Network) -> Compute:  # cuda only
    """CV-CUDA's operators before and after the network: NV12 to NV12."""
    sample = preprocess.by_cvcuda(*place.size, place.info.matrix)
    blend = composite.by_cvcuda(*place.size)
    return _on_device(place, lambda decoded, nv12: sample(nv12), network, blend)


def _on_device(place: Place, sample: Work, network: Network, blend: Work) -> Compute:
    """`sample` gets the frames as they were decoded, and as NV12 on the device."""

    def compute(first: int, decoded: Pixels | Tensor) -> Tensor:
        with nullcontext() if isinstance(decoded, Tensor) else place.clock("upload", first):
            nv12 = decoded.to(place.device) if isinstance(decoded, Tensor) else place.upload(decoded)
        with place.clock("preprocess", first):
            frames = sample(decoded, nv12)  # float32 [n, 3, h, w]
        with place.clock("segment", first):
            logits = network(frames)  # float32 [n, classes, h, w]
        with place.clock("composite", first):
            return blend(nv12, logits)  # uint8 [n, H*3//2, W]

    return compute


# --- the rungs of the ladder ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rung:
    """A pipeline. The stages of an `overlapped` one work at once, each on another batch."""

    decode: MakeDecoder = HostDecoder
    network: Callable[[Place], Side] = eager
    compute: Callable[[Place, Network], Compute] = on_host
    encoder: type[Encoder] = Mp4v
    overlapped: bool = False


REFERENCE = Rung()
SEGMENT_FUSED = replace(REFERENCE, network=cudnn_fused)
COMPOSITE_GPU = replace(SEGMENT_FUSED, compute=composite_on_device)
PREPROCESS_GPU = replace(COMPOSITE_GPU, compute=on_device)
# Four sessions decode more than twice what the network takes; each further one makes the start longer.
NVDEC_SESSIONS = replace(PREPROCESS_GPU, decode=partial(ParallelDecoder, sessions=4))
NVJPEG = replace(NVDEC_SESSIONS, encoder=MotionJpeg)
OVERLAPPED = replace(NVJPEG, overlapped=True)
TRITON = replace(OVERLAPPED, compute=in_triton)
X264 = replace(OVERLAPPED, encoder=encoders.X264)
TENSORRT_STAGES = replace(X264, network=tensorrt, compute=in_cvcuda)  # NVIDIA's library in each stage
NVENC = replace(OVERLAPPED, encoder=encoders.Nvenc)
ON_CPU = replace(REFERENCE, overlapped=True)


# --- a rung at work ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Frames `first`, `first` + 1, ... of a clip, or what became of them; `ready` is the device's last work on them."""

    first: int
    content: Any
    ready: torch.cuda.Event | None = None

    def on_stream(self) -> Any:
        """The content, for the current stream of the calling thread."""
        if self.ready is not None:
            current = torch.cuda.current_stream(self.content.device)  # cuda only
            current.wait_event(self.ready)  # cuda only
            self.content.record_stream(current)  # cuda only
        return self.content


def hand_on(first: int, content: Any) -> Batch:
    """The batch, with the event behind the work of the current stream: the next stage waits for no more than that."""
    on_device = isinstance(content, Tensor) and content.is_cuda
    return Batch(first, content, torch.cuda.current_stream(content.device).record_event() if on_device else None)


AHEAD = 3  # batches that each stage of an overlapped pipeline is ahead of what the next one was given


class Pipeline:
    """A rung at work on a video, once or in a loop; `write` takes composites in the form of its encoder.

    Where the rung is overlapped, decoding, computing and encoding each have a thread and a stream of their own, and
    work on one batch each. `make_last` builds the last function of a batch's composites, whose results `take` returns;
    by default the composites.
    """

    def __init__(
        self,
        rung: Rung,
        context: Context,
        info: VideoInfo,
        write: Callable[[Any], object] = lambda composites: None,
        loop: bool = False,
        clock: Clock = stage,
        make_last: Callable[[Place], Callable[[Any], Any]] | None = None,
    ) -> None:
        device, self._write, self._decoded = context.device, write, 0
        self._threads: list[ThreadPoolExecutor] = []
        self._ahead: tuple[deque[Future[Batch | None]], ...] = deque(), deque(), deque()  # of each thread
        self._decoder = rung.decode(info.path, device, loop)
        with ExitStack() as built:  # the decoder is closed where a later part fails
            built.callback(self.close)
            self.place = place = Place(context, info, self._decoder.settle, clock)
            self.network = rung.network(place)
            self._compute = rung.compute(place, self._segment)
            self._encoded_form = self._form_for(rung.encoder)
            self._last = make_last(place) if make_last else lambda composites: composites
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()  # cuda only  # other streams use what is made here
            self.stream = another_stream(device)  # for the caller of `take`; None on a CPU
            self._streams = [self.stream]
            if rung.overlapped:
                self._streams += [another_stream(device) for _ in range(3)]
                self._threads = [
                    ThreadPoolExecutor(1, f"video-{name}", use_stream, (stream,))
                    for name, stream in zip(("decode", "compute", "encode"), self._streams[1:], strict=True)
                ]
            built.pop_all()

    def take(self) -> Batch | None:
        """The next batch, in the order of the clip; None after the last one. Raises any error of a stage."""
        if not self._threads:
            with on_stream(self.stream):
                decoded = self.decode()
                return None if decoded is None else self.encode(self.compute(decoded))
        try:
            return self._next_of(2).result()
        except BaseException:
            self.close()
            raise

    def _next_of(self, stage: int) -> Future[Batch | None]:
        """The next batch of the stage's thread; AHEAD later ones are in work, or done and wait for the next stage.

        After `settle` all of them are done, so every stage has a batch to work on at once.
        """
        thread, ahead = self._threads[stage], self._ahead[stage]
        while len(ahead) <= AHEAD:
            if stage == 0:
                ahead.append(thread.submit(self.decode))
            else:
                ahead.append(thread.submit(_work_on, self._next_of(stage - 1), (self.compute, self.encode)[stage - 1]))
        return ahead.popleft()

    def decode(self) -> Batch | None:
        """The next frames, up to BATCH; None after the last one."""
        with self.place.clock("decode", self._decoded):
            frames = self._decoder.read(BATCH)
        first, self._decoded = self._decoded, self._decoded + len(frames)
        return hand_on(first, frames) if len(frames) else None

    def compute(self, batch: Batch) -> Batch:
        """Preprocesses, segments and composites the batch."""
        return hand_on(batch.first, self._compute(batch.first, batch.on_stream()))

    def encode(self, batch: Batch) -> Batch:
        composites = batch.on_stream()
        with self.place.clock("encode", batch.first):
            self._write(self._encoded_form(composites))
        return hand_on(batch.first, self._last(composites))

    def settle(self) -> None:
        """Waits until no batch is being processed, and the device is done with all of them.

        Between two such moments exactly as many batches were processed as were taken.
        """
        wait(chain(*self._ahead))
        self._decoder.settle()
        for stream in self._streams:
            if stream is not None:
                stream.synchronize()  # cuda only

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)
        for ahead in self._ahead:
            ahead.clear()
        self._decoder.close()

    def _segment(self, frames: Tensor) -> Tensor:
        """The logits of up to BATCH frames, the number that networks are captured for; missing frames are zero."""
        missing = BATCH - len(frames)
        whole = F.pad(frames, (0, 0, 0, 0, 0, 0, 0, missing)) if missing else frames
        logits: Tensor = self.network.step(whole)
        return logits[: len(frames)]

    def _form_for(self, encoder: type[Encoder]) -> Callable[[Any], Any]:
        """The function from composites, BGR on the host or NV12 on the device, to what the encoder takes."""
        if encoder is Mp4v:
            return lambda composites: self.place.download(composites) if isinstance(composites, Tensor) else composites
        if encoder is MotionJpeg:
            to_rgb = partial(rgb_from_nv12, matrix=self.place.info.matrix)
            return self.place.one_launch(to_rgb, lambda: (self.place.nv12(),))
        return lambda nv12: nv12


def _work_on(before: Future[Batch | None], work: Callable[[Batch], Batch]) -> Batch | None:
    batch = before.result()
    return None if batch is None else work(batch)


def use_stream(stream: torch.cuda.Stream | None) -> None:
    """Makes the stream and its device the calling thread's own."""
    if stream is not None:
        torch.cuda.set_device(stream.device)  # cuda only
        torch.cuda.set_stream(stream)  # cuda only


def another_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream other than the default one, for which some libraries make all others wait; None on a CPU."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def on_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """The context of a stream; of none on a CPU, where PyTorch's own context would start CUDA if there is a GPU."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


# --- the sides --------------------------------------------------------------------------------------------------------


def size(kind: DeviceKind) -> Size:
    """A step is a batch. FLOPs: those of `segment.size`. Bytes: the network's, and each frame once in and out."""
    clip, network = CLIPS[kind], segment.size(kind)
    moved = network.bytes + 2.0 * BATCH * clip.width * clip.height * 3 // 2
    return Size(items=BATCH, flops=network.flops, bytes=moved, whole_run_items=clip.frames)


def build(rung: Rung, context: Context) -> Side:
    """The side of a rung; on a CPU the network gets one thread as the device, and the host the other cores.

    Raises VideoError, EncodingError, ValueError or OSError, in one sentence, where a stage is not available.
    """
    one_thread_on_cpu(context.device)
    clip = source(context)
    grids = composite_grids(context)  # before this side's own parts: another pipeline may compute them
    with ExitStack() as built:  # the recorder is closed where the pipeline fails
        recorder = Recorder(rung.encoder, clip, context.device, clip.frames, context.cache_dir)
        built.callback(recorder.close)
        follow = partial(_follow, rung, grids)
        pipeline = Pipeline(rung, context, clip, recorder.write, loop=True, make_last=follow)
        built.callback(pipeline.close)  # before the recorder
        closing_all = built.pop_all()

    def step(stamp: Tensor) -> Tensor:
        with on_stream(pipeline.stream):
            batch = cast(Batch, pipeline.take())  # the clip goes round
            return cast(Tensor, batch.on_stream().to(stamp.device) * stamp[:, None])

    def checked_step(stamp: Tensor) -> Tensor:
        """A step whose record must be right: the record of a wrong reference would equal that of a wrong side."""
        record = step(stamp)
        if not torch.equal(record, stamp[:, None].expand_as(record)):
            raise ValueError(
                f"the baseline's frames are no longer those in {context.cache_dir / FOLDER}: remove that folder, and "
                "raise FORMAT in pipeline.py if a stage of the baseline has changed"
            )
        return record

    def finish() -> None:
        pipeline.settle()
        recorder.settle()

    return Side(
        step,
        finish=finish,
        engaged=pipeline.network.engaged,
        layers=pipeline.network.layers,
        close=closing_all.close,
        # A pipeline is as full after a step as before it. Frames that FFmpeg decodes ahead for the baseline are left
        # out: it decodes beside the other stages in any case, and finishes in a seventh of a step.
        stock_steps=-(-rung.encoder.stock_frames // context.items),
        works_ahead=rung.overlapped or rung.decode is not HostDecoder,
        round_steps=-(-clip.frames // context.items),  # of one complete file
        expected_step=checked_step if rung == REFERENCE else None,
    )


def _follow(rung: Rung, grids: Tensor, place: Place) -> Callable[[Any], Tensor]:
    """The function that records composites where they lie, see `Arrivals`."""
    device = torch.device("cpu") if rung.compute is on_host else place.device
    arrivals = Arrivals(grids, device, not is_users(place.context), COMPOSITED_LEVELS)
    if rung.compute is on_host:
        return lambda bgr: arrivals.of_bgr(bgr, place.info.matrix)
    record = place.one_launch(arrivals.of_nv12, lambda: (place.nv12(),))
    arrivals.begin()  # of these frames nothing is kept
    return record


def x264_alone(rung: Rung, context: Context) -> Side:
    """libx264 alone on the rung's composites, ready in host memory: an upper bound of the rung."""
    clip, alone = source(context), replace(rung, decode=HostPlanesDecoder, overlapped=False)
    with closing(Pipeline(alone, context, clip, loop=True)) as pipeline:
        batches = (cast(Batch, pipeline.decode()) for _ in range(-(-clip.frames // BATCH)))
        ready = [pipeline.compute(batch).on_stream().cpu() for batch in batches]
    recorder = Recorder(encoders.X264, clip, context.device, clip.frames, context.cache_dir)
    turns = cycle(ready)

    def step(stamp: Tensor) -> Tensor:
        recorder.write(next(turns))
        return stamp[:, None].repeat(1, 2)

    return Side(
        step,
        finish=recorder.settle,
        close=recorder.close,
        stock_steps=-(-encoders.X264.stock_frames // context.items),
        works_ahead=True,
        round_steps=-(-clip.frames // context.items),
    )


# --- the reference's composites ---------------------------------------------------------------------------------------

FORMAT = 4  # of the stored grids; raise it whenever the baseline's stages compute other composites
FOLDER = "video-composites"  # in the context's `cache_dir`
COMPARED_FRAMES = 600  # the clip's length, half a minute of the baseline on an H200; of a longer video the first ones


@functools.lru_cache(maxsize=1)
def composite_grids(context: Context) -> Tensor:
    """The luma of the reference's composites, as of `luma_of_nv12`: float32 [frames, rows, columns] on the CPU.

    It is NaN from frame COMPARED_FRAMES on. The baseline's own stages compute it, once for a clip and its weights, in
    the time that the baseline takes for the clip. Raises VideoError for a video that cannot be decoded.
    """

    def make() -> bytes:
        grids, matrix = list[Tensor](), source(context).matrix
        with closing(_baseline_composites(context)) as batches:
            while len(grids) < COMPARED_FRAMES and (composited := next(batches, None)) is not None:
                grids += luma_of_bgr(composited, matrix)
        buffer = io.BytesIO()
        torch.save(torch.stack(grids[:COMPARED_FRAMES]), buffer)
        return buffer.getvalue()

    content = read_or_make(context.cache_dir / FOLDER / f"{_key(context)}.pt", make)
    grids: Tensor = torch.load(io.BytesIO(content), weights_only=True)
    return F.pad(grids, (0, 0, 0, 0, 0, source(context).frames - len(grids)), value=torch.nan)


def _key(context: Context) -> str:
    """A name that changes with any fact that decides the composites."""
    import av
    import cv2

    kind, checkpoint = kind_of(context), own_checkpoint(context)
    weights = fit_key(kind, CLIPS[kind], context.seed, context.device)  # names the processor and torch too
    files = [path.read_bytes() for path in (source(context).path, checkpoint) if path is not None]
    versions = cv2.__version__, av.__version__, torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return key_of(FORMAT, COMPARED_FRAMES, weights, *files, versions)


def _baseline_composites(context: Context) -> Generator[Pixels, None, None]:
    """Yields the composites of each batch, BGR on the host, by OpenCV and the eager network in strict FP32.

    Raises ValueError where composites of our own clip equal it.
    """
    with (
        torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
        closing(Pipeline(REFERENCE, context, source(context))) as pipeline,
    ):
        while (batch := pipeline.decode()) is not None:
            composited = pipeline.compute(batch).content
            if not is_users(context) and (db := psnr_db(batch.content, composited)) >= LEAST_COMPOSITED_DB:
                raise ValueError(f"the baseline's composites have {db:.1f} dB with its input: nothing was blurred")
            yield composited


# --- the proof: a whole file ------------------------------------------------------------------------------------------

COMPARED_EVERY = 10  # frames of a file, with the encoder's inputs


def file_is_whole(rung: Rung, context: Context) -> str:
    """Proves that every frame of the clip is in the file, in order, and like the encoder's input.

    Each step compares the luma of the composites with the baseline's; the proof compares the colours of the first one.
    """
    clip, given = source(context), dict[int, Pixels]()  # composites by number, NV12 on the host
    with tempfile.TemporaryDirectory(prefix="recording-", dir=context.cache_dir) as folder:
        path = Path(folder, f"clip{rung.encoder.suffix}")
        with (
            on_stream(another_stream(context.device)),
            rung.encoder(path, clip, context.device) as encoder,
            closing(Pipeline(rung, context, clip, encoder.write)) as pipeline,
        ):
            while (batch := pipeline.take()) is not None:
                composites = batch.on_stream()
                for place in range(-batch.first % COMPARED_EVERY, len(composites), COMPARED_EVERY):
                    frame = composites[place : place + 1]
                    nv12 = frame if isinstance(frame, Tensor) else pipeline.place.upload(frame)
                    given[batch.first + place] = nv12[0].cpu().numpy()
        words = quality(path, given, clip, not is_users(context)).judge(clip.frames)
    with closing(_baseline_composites(context)) as batches:
        first = pipeline.place.upload(next(batches)[:1])[0]
    first_db = psnr_db(given[0], first.cpu().numpy())
    words += f", {first_db:.1f} dB of the first composite with the baseline's"
    if first_db < LEAST_COMPOSITED_DB:
        raise DisprovedError(f"{words}: {LEAST_COMPOSITED_DB:g} dB are wanted")
    return words


# --- promises ---------------------------------------------------------------------------------------------------------

VIDEO = replace(VIDEO_ENGINES, compute_capability=(8, 0))
GPU_STAGES = replace(GPU, compute_capability=(8, 0))
WITH_TRITON = replace(VIDEO, packages=(*VIDEO.packages, "triton"))
WITH_TENSORRT = replace(VIDEO, packages=(*VIDEO.packages, "cvcuda"), engine=TENSORRT.engine)
WITH_NVENC = replace(VIDEO, engine=Engine("nvenc", why_not))
PIXELS = BATCH * CLIPS["cuda"].width * CLIPS["cuda"].height  # of a step; a user's own video may have more
# The project's target is 13.4 for H.264 by a GPU's own encoder, which an A100, H100 or H200 lacks. Motion JPEG, whose
# files have many times the bits, has to reach it. H.264 by libx264 misses it, and has to keep 0.8 of what it has.
MOTION_JPEG_WITH_START_UP = Limit("whole_run_speedup", at_least=13.4)
H264_WITH_START_UP = Limit("whole_run_speedup", at_least=5.4)  # 6.2 to 6.8 on a slow host of an H200
ALWAYS_BUSY = Limit("active_fraction", at_least=0.80)
COMPRESSED_ONLY = compressed_only(BATCH, COMPOSITED_BYTES)
NV12_ONLY = Limit("device_to_host_bytes", at_most=PIXELS * 3 // 2 + TEST_READS_BYTES)
BGR_ONLY = Limit("device_to_host_bytes", at_most=PIXELS * 3 + TEST_READS_BYTES)  # no logits, a third as much again
WITHIN_8_GIB = Limit("peak_bytes", at_most=8 * 2**30)  # every case checks that it does not grow
# A captured stage is a launch of its own for a batch, and a step is a batch.
ONE_STAGE, THREE_STAGES, FOUR_STAGES = (Limit("graph_launches", at_least=stages) for stages in (1, 3, 4))
FEW_LAUNCHES = Limit("kernel_launches", at_most_of_reference=0.1)
A_FRAME_GOES_UP_ONCE = Limit("host_to_device_bytes", at_most_of_reference=0.75)
NO_FRAME_GOES_UP = Limit("host_to_device_bytes", at_most=2**20)  # no host has decoded it
NO_FRAME_COMES_BACK = Limit("kernels", at_most=8), Limit("device_to_host_bytes", at_most=TEST_READS_BYTES)


def _rung(
    name: str,
    rung: Rung,
    speedup: Mapping[str, float],
    why: str,
    *engaged: Limit,
    on_sm_90: tuple[Limit, ...] = (),
    **more: Any,
) -> Optimization:
    """A rung on a GPU. `engaged` is what shows its stages at work, `on_sm_90` are limits that an H200 has measured."""
    from_host = rung.decode is HostDecoder
    limits = () if from_host else (WITHIN_8_GIB,)
    engaged = engaged if from_host else (NO_FRAME_GOES_UP, *engaged)
    words = {
        "dtype": "float16",
        "needs": GPU_STAGES if from_host else VIDEO,
        "tolerance": EXACT,
        "contract": {"sm_90": Contract(engaged, (*limits, *on_sm_90)), "cuda": Contract(engaged, limits)},
        "proofs": () if rung.encoder is Mp4v else (Proof("file is whole", partial(file_is_whole, rung)),),
        **more,
    }
    return Optimization(name, partial(build, rung), speedup, why=why, **words)


X264_BOUND = "H.264 out, as users get it: libx264 on the cores is the longest stage, and all else hides behind it"
NVIDIAS_LIBRARIES = "TensorRT and CV-CUDA in place of fused cuDNN calls and torch: libx264 is the longest stage of both"
KERNELS_IN_TRITON = (
    "Motion JPEG out; a kernel preprocesses, and one for each plane composites, in place of a captured dozen"
)
MOTION_JPEG = "Motion JPEG out, with many times the bits of H.264 at equal PSNR: the proofs print both figures of both"
OVERLAP = "every stage works on another batch: the pipeline takes the time of the longest stage"
NO_PIPELINE = "the encoder's own speed, on frames that lie ready: the most that a pipeline which ends in it can reach"
ENCODED_APART = "H.264 out by the GPU's own encoder, an engine apart from what computes"
SHARED_CORES = "below, OpenCV decodes and encodes on all cores of the host, which others use too"
OWN_HOST = "a host of its own reaches 0.97, and less where others use the cores that libx264 encodes on"
LONGEST_FIRST = "the longest stage of the GPU first; what the CPU does takes seven tenths of a step"
UP_AND_BACK = "frames go up for it and come back for the encoder"
BORN_ON_GPU = "frames are born on the GPU; the encoder still wants them back"
WITHIN_NOISE = (
    "at most a tenth of the time, which is the noise of what the CPU still decodes and encodes: hardly a loss"
)
NOISY_CPU = (
    "within a process what the CPU decodes and encodes varies more, and the interval of a process must keep the promise"
)
TWO_CORES = (
    "decoding, computing and encoding share the same cores: overlap fills only what one of them "
    "leaves idle; in the sequential baseline too the network computes on one thread"
)

BELOW = (
    _rung(
        *("segment-fused", SEGMENT_FUSED, {"sm_90": 1.05, "cuda": 0.95}, LONGEST_FIRST),
        *(*TENSOR_CORES, ONE_STAGE, FEW_LAUNCHES),
    ),
    _rung(
        *("composite-gpu", COMPOSITE_GPU, {"sm_90": 1.0, "cuda": 0.9}, UP_AND_BACK),
        *(*TENSOR_CORES, THREE_STAGES, BGR_ONLY),
        min_speedup_why=SHARED_CORES,
    ),
    _rung(
        *("preprocess-gpu", PREPROCESS_GPU, {"sm_90": 0.85, "cuda": 0.8}, WITHIN_NOISE),
        *(FOUR_STAGES, A_FRAME_GOES_UP_ONCE),
        min_speedup_why=NOISY_CPU,
    ),
    _rung("nvdec-sessions", NVDEC_SESSIONS, {"sm_90": 1.0, "cuda": 0.9}, BORN_ON_GPU, FOUR_STAGES),
    _rung(
        *("nvjpeg", NVJPEG, {"sm_90": 10.0, "cuda": 1.0}, f"only the compressed stream comes back; {MOTION_JPEG}"),
        contract={"cuda": Contract((COMPRESSED_ONLY,))},
        min_speedup_why=SHARED_CORES,
    ),
    _rung("overlapped", OVERLAPPED, {"sm_90": 0.95, "cuda": 0.95}, OVERLAP, COMPRESSED_ONLY, on_sm_90=(ALWAYS_BUSY,)),
)
LADDER = (BELOW[0], *(replace(rung, compared_with=below.name) for below, rung in pairwise(BELOW)))
OPTIMIZED = (
    _rung(
        *("optimized-x264", X264, {"sm_90": 7.0, "cuda": 1.5}, X264_BOUND, FOUR_STAGES, NV12_ONLY),
        on_sm_90=(H264_WITH_START_UP,),
    ),
    _rung(
        *("optimized-tensorrt", TENSORRT_STAGES, {"sm_90": 0.95, "cuda": 0.9}, NVIDIAS_LIBRARIES),
        *(Limit("tensor_core_kernels", at_least=40), NV12_ONLY),
        compared_with="optimized-x264",
        needs=WITH_TENSORRT,
    ),
    Optimization(
        *("x264-alone", partial(x264_alone, X264), {"sm_90": 9.4, "cuda": 0.5}),
        tolerance=EXACT,
        needs=GPU_STAGES,
        contract={"cuda": Contract(NO_FRAME_COMES_BACK)},
        why=NO_PIPELINE,
    ),
    _rung(
        *("of-x264-alone", X264, {"sm_90": 0.75, "cuda": 0.5}, X264_BOUND, FOUR_STAGES, NV12_ONLY),
        compared_with="x264-alone",
        min_speedup_why=OWN_HOST,
    ),
    _rung(
        *("optimized-triton", TRITON, {"cuda": 0.95}, KERNELS_IN_TRITON, COMPRESSED_ONLY),
        compared_with="optimized-nvjpeg",
        needs=WITH_TRITON,
    ),
    _rung("optimized-nvenc", NVENC, {"cuda": 1.5}, ENCODED_APART, COMPRESSED_ONLY, needs=WITH_NVENC),
    _rung(
        *("optimized-nvjpeg", OVERLAPPED, {"sm_90": 35.0, "cuda": 3.0}, f"{MOTION_JPEG}; {OVERLAP}", COMPRESSED_ONLY),
        on_sm_90=(ALWAYS_BUSY, MOTION_JPEG_WITH_START_UP),
    ),
    _rung(
        *("optimized-on-cpu", ON_CPU, {"cpu": 0.6}, TWO_CORES),
        dtype="float32",
        needs=ON_HOST,
        contract={},
        proofs=(Proof("file is whole", partial(file_is_whole, ON_CPU)),),
    ),
)
END_TO_END = Workload(
    name="video/end-to-end",
    baseline=partial(build, REFERENCE),
    inputs=stamps,
    sizes={kind: size(kind) for kind in CLIPS},
    optimizations=(*LADDER, *OPTIMIZED),
    cold=False,  # the inputs are stamps; frames come from a file
    timing="pipeline",
    ladder=True,
    settings={**VIDEO_SETTING, **SEGMENTER_SETTING},
)
