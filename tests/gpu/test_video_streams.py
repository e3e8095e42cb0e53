"""Frames that go from library to library, each with streams of its own, are whole, and nobody waits for the device.

Before whoever hands frames on lies a long kernel on its stream, so that the host is far ahead of it: where a wait is
missing, the next one finds what the memory held before, which is other frames, and their pixels tell.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gpugate.workload import Context
from workloads.parts.photographs import IMAGENET_STD
from workloads.video import composite, decode, preprocess
from workloads.video import pipeline as rungs
from workloads.video.clip import BATCH, CLIPS, Clip, clip_path
from workloads.video.decode import HostPlanesDecoder
from workloads.video.encoders import EncodingError, MotionJpeg, why_not
from workloads.video.frames import VideoInfo, examine, rgb_from_nv12
from workloads.video.pipeline import Pipeline, Place, Rung
from workloads.video.preprocess import input_size

DEVICE = torch.device("cuda", 0)
CLIP = Clip(1152, 648, 240)  # eight segments; an exact third of it is what the network gets, as of 1080p
VIDEO = VideoInfo(Path("clip.mp4"), CLIP.width, CLIP.height, CLIP.frames, Fraction(30), "bt601", keyframes=())
CODED_FRAMES, QUEUED_FRAMES = 96, 48
CYCLES_PER_MS = 2_000_000  # of an H200 under load; a slower clock only makes it longer
MIB, SEGMENT_MIB = 2**20, 20  # the latter is how much torch asks the driver for at once
# Neighbours in the clip are 26 dB apart, frames of two batches 21 dB.
LEAST_DECODED_DB, LEAST_COMPOSITED_DB, LEAST_CODED_DB = 45.0, 50.0, 32.0
MOST_LEVELS_LIGHTER, MOST_LEVELS_APART = 1.7, 3.1  # CV-CUDA's colours over swscale's, see preprocess.by_cvcuda


CVCUDA = replace(rungs.X264, sample=preprocess.by_cvcuda, blend=composite.by_cvcuda)


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [package for package in packages if find_spec(package) is None]
    advice = f"the package {' and '.join(missing)} is missing: pip install 'gpugate[workloads,video]'"
    return pytest.mark.skipif(bool(missing), reason=advice)


def keep_busy(stream: torch.cuda.Stream, ms: float) -> None:
    with torch.cuda.stream(stream):
        torch.cuda._sleep(round(ms * CYCLES_PER_MS))


def late(method: Callable[..., Any], ms: float) -> Callable[..., Any]:
    """The method, behind a long kernel on the stream that is current when it is called."""

    @functools.wraps(method)
    def run(*arguments: Any) -> Any:
        keep_busy(torch.cuda.current_stream(DEVICE), ms)
        return method(*arguments)

    return run


@contextmanager
def busy_elsewhere() -> Iterator[None]:
    """The device works for a second on a stream of nobody's: whoever waits for all of it comes back after that."""
    other = torch.cuda.Stream(DEVICE)
    keep_busy(other, 1000)
    done = other.record_event()
    yield
    assert not done.query(), "the whole device was waited for"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def clip(cache: Path) -> Path:
    return clip_path(cache, CLIP)


@pytest.fixture(scope="module")
def frames(clip: Path) -> Tensor:
    """uint8 [240, H*3/2, W]: the clip in NV12 on the device, as FFmpeg decodes it on the CPU."""
    with closing(HostPlanesDecoder(clip)) as decoder:
        return torch.as_tensor(decoder.read(CLIP.frames), device=DEVICE)


@pytest.fixture
def stream() -> Iterator[torch.cuda.Stream]:
    """torch's current stream during a test: not the default one, which libraries fall back to."""
    made = torch.cuda.Stream(DEVICE)
    made.wait_stream(torch.cuda.current_stream(DEVICE))
    with torch.cuda.stream(made):
        yield made


@pytest.fixture
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes every later synchronization of the device fail; the work of first calls is over before."""

    def refuse(device: object = None) -> None:
        raise AssertionError("torch.cuda.synchronize() was called")

    return lambda: monkeypatch.setattr(torch.cuda, "synchronize", refuse)


@pytest.fixture
def context(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    if torch.cuda.get_device_capability(DEVICE) < (8, 0):
        pytest.skip("the pipelines' network is fused for capability 8.0: run this on an A100 or newer")
    monkeypatch.setitem(CLIPS, "cuda", CLIP)
    return Context(DEVICE, BATCH, 0, cache)


def mean_squares(found: Tensor, wanted: Tensor) -> Tensor:
    """float32 [n]: of the differences between frames, uint8 [n, rows, columns], on the device."""
    assert found.shape == wanted.shape
    return (found.float() - wanted.float()).square().mean((1, 2))


def least_db(mean_square: list[Tensor]) -> float:
    """The PSNR of the worst frame."""
    worst = float(torch.cat(mean_square).max())
    return 10 * math.log10(255**2 / worst) if worst else math.inf


# --- NVDEC to PyTorch -------------------------------------------------------------------------------------------------


@needs("av", "PyNvVideoCodec")
@pytest.mark.parametrize("make", [decode.OneSession, decode.ParallelDecoder])
@pytest.mark.parametrize("busy", ["decoder", "reader"])
def test_frames_of_nvdec_are_whole_and_in_order(
    clip: Path,
    frames: Tensor,
    stream: torch.cuda.Stream,
    nobody_waits: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    make: decode.MakeDecoder,
    busy: str,
) -> None:
    """A busy decoder hands frames on before they are there; a busy reader still needs what could be overwritten."""
    if busy == "decoder":
        monkeypatch.setattr(decode, "as_tensor", late(decode.as_tensor, 3))
    nobody_waits()
    mean_square = []
    with closing(make(clip, DEVICE, True)) as decoder:
        for first in range(0, 2 * CLIP.frames, BATCH):
            if busy == "reader":
                keep_busy(stream, 10)
            nv12 = decoder.read(BATCH)
            mean_square.append(mean_squares(nv12, frames[first % CLIP.frames :][:BATCH]))
    assert least_db(mean_square) >= LEAST_DECODED_DB


# --- PyTorch to a graph and back --------------------------------------------------------------------------------------


@needs("av")
@pytest.mark.usefixtures("stream")
def test_one_launch_converts_what_torch_has_queued(
    clip: Path, frames: Tensor, nobody_waits: Callable[[], None]
) -> None:
    place = Place(Context(DEVICE, BATCH, 0, clip.parent), examine(clip))
    batches = [(each,) for each in frames[:QUEUED_FRAMES].split(BATCH)]
    found = under_load(rungs.make_encoded_form(MotionJpeg, place), batches, nobody_waits)
    wanted = [rgb_from_nv12(*batch, "bt601") for batch in batches]
    assert all(map(torch.equal, found, wanted))


# --- PyTorch to CV-CUDA to PyTorch ------------------------------------------------------------------------------------


def in_turn(work: Callable[..., Tensor], batches: Sequence[tuple[Tensor, ...]], ms: float) -> list[Tensor]:
    """Returns the result of `work` for each batch: all batches use the same memory, filled behind a long kernel."""
    memory = [torch.zeros_like(each) for each in batches[0]]
    results = []
    for batch in batches:
        keep_busy(torch.cuda.current_stream(DEVICE), ms)
        for place, each in zip(memory, batch, strict=True):
            place.copy_(each)
        results.append(work(*memory).clone())
    return results


def under_load(
    work: Callable[..., Tensor], batches: Sequence[tuple[Tensor, ...]], nobody_waits: Callable[[], None]
) -> list[Tensor]:
    for _ in range(2):
        in_turn(work, batches, 0)  # kernels loaded, and memory for all of it allocated, which may wait for the device
    torch.cuda.current_stream(DEVICE).synchronize()
    nobody_waits()
    with busy_elsewhere():
        return in_turn(work, batches, 20)


@needs("av", "cvcuda")
@pytest.mark.usefixtures("stream")
def test_cvcuda_preprocesses_what_torch_has_queued(frames: Tensor, nobody_waits: Callable[[], None]) -> None:
    size = CLIP.height, CLIP.width, DEVICE
    ours, theirs = preprocess.in_torch(*size), preprocess.by_cvcuda(*size)
    # Luma below black is black to CV-CUDA.
    batches = [(each.clamp(min=16),) for each in frames[:QUEUED_FRAMES].split(BATCH)]
    wanted = [ours(*batch) for batch in batches]
    found = under_load(theirs, batches, nobody_waits)
    levels = (torch.cat(found) - torch.cat(wanted)) * torch.tensor(IMAGENET_STD, device=DEVICE).view(3, 1, 1) * 255
    assert float(levels.abs().max()) <= MOST_LEVELS_APART
    assert -0.1 <= float(levels.mean()) <= MOST_LEVELS_LIGHTER


@needs("av", "cvcuda")
@pytest.mark.usefixtures("stream")
def test_cvcuda_composites_what_torch_has_queued(frames: Tensor, nobody_waits: Callable[[], None]) -> None:
    size = CLIP.height, CLIP.width, DEVICE
    ours, theirs = composite.in_torch(*size), composite.by_cvcuda(*size)
    h, w = input_size(CLIP.height, CLIP.width)
    random = torch.Generator(DEVICE).manual_seed(0)
    blobs = torch.randn(QUEUED_FRAMES, 2, h // 24, w // 24, generator=random, device=DEVICE)
    logits = F.interpolate(4 * blobs, (h, w), mode="bilinear", align_corners=False)
    batches = [*zip(frames[:QUEUED_FRAMES].split(BATCH), logits.split(BATCH), strict=True)]
    wanted = [ours(*batch) for batch in batches]
    found = under_load(theirs, batches, nobody_waits)
    assert least_db([*map(mean_squares, found, wanted)]) >= LEAST_COMPOSITED_DB


# --- PyTorch to encoders ----------------------------------------------------------------------------------------------


def assert_shows(path: Path, originals: Tensor) -> None:
    from workloads.video.encode import quality

    found = quality(path, dict(enumerate(originals.cpu().numpy())), VIDEO)
    assert len(found.grids) == len(originals)
    assert min(found.psnr_db.values()) >= LEAST_CODED_DB


@needs("av")
def test_libx264_gets_what_torch_has_queued(
    tmp_path: Path, frames: Tensor, stream: torch.cuda.Stream, nobody_waits: Callable[[], None]
) -> None:
    """The producer is busy, and has nothing to copy yet; it lets its memory go before the copy is made."""
    from workloads.video.encoders import X264

    nobody_waits()
    with X264(tmp_path / "clip.mp4", VIDEO) as encoder:
        for batch in frames[:CODED_FRAMES].split(BATCH):
            keep_busy(stream, 20)
            encoder.write(batch.clone())
    assert encoder.frames == CODED_FRAMES
    assert_shows(tmp_path / "clip.mp4", frames[:CODED_FRAMES])


@needs("av", "torchvision")
@pytest.mark.parametrize("busy", ["producer", "default"])
def test_nvjpeg_gets_what_torch_has_queued(
    tmp_path: Path, frames: Tensor, stream: torch.cuda.Stream, nobody_waits: Callable[[], None], busy: str
) -> None:
    """A busy producer has nothing to encode yet; a busy default stream has nothing to do with it."""
    nobody_waits()
    with MotionJpeg(tmp_path / "clip.mov", VIDEO) as encoder:
        for batch in frames[:CODED_FRAMES].split(BATCH):
            keep_busy(stream if busy == "producer" else torch.cuda.default_stream(DEVICE), 20)
            encoder.write(rgb_from_nv12(batch, "bt601"))
    assert encoder.frames == CODED_FRAMES
    assert_shows(tmp_path / "clip.mov", frames[:CODED_FRAMES])


@needs("av")
def test_an_nvenc_that_is_not_there_leaves_cuda_alone(tmp_path: Path) -> None:
    """After a failed encoder a process can launch nothing any more, so a child tries."""
    from workloads.video.encoders import Nvenc

    left = torch.randn(256, 256, device=DEVICE)
    before = left @ left
    why_not.cache_clear()
    reason = why_not(0)
    if reason is None:
        pytest.skip("this GPU has NVENC: that its absence does no harm shows on A100, H100 or H200")
    assert "NVENC" in reason
    assert "\n" not in reason
    with pytest.raises(EncodingError) as raised:
        Nvenc(tmp_path / "clip.mp4", VIDEO, DEVICE)
    assert str(raised.value) == reason
    assert [*tmp_path.iterdir()] == []
    another = torch.cuda.Stream(DEVICE)
    another.wait_stream(torch.cuda.current_stream(DEVICE))
    with torch.cuda.stream(another):
        assert torch.equal(left @ left, before)


# --- whole pipelines --------------------------------------------------------------------------------------------------


@needs("av", "torchvision", "PyNvVideoCodec", "triton")
@pytest.mark.parametrize(
    "rung",
    [
        pytest.param(rungs.OVERLAPPED, id="nvjpeg"),
        pytest.param(rungs.X264, id="x264"),
        pytest.param(CVCUDA, id="cvcuda", marks=needs("cvcuda")),
        pytest.param(rungs.TENSORRT_STAGES, id="tensorrt", marks=needs("cvcuda", "onnx", "tensorrt")),
    ],
)
def test_every_stage_waits_for_the_one_before(
    rung: Rung, context: Context, nobody_waits: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is behind a long kernel on its thread's own stream, while the host is some batches ahead.

    The default stream waits for none: some libraries make all others wait for it.
    """
    for stage in ("decode", "compute", "encode"):
        monkeypatch.setattr(Pipeline, stage, late(getattr(Pipeline, stage), 5))
    wait = torch.cuda.Stream.wait_event

    def checked(stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        assert stream != torch.cuda.default_stream(DEVICE), "the default stream is to wait"
        wait(stream, event)

    monkeypatch.setattr(torch.cuda.Stream, "wait_event", checked)
    stamps = torch.ones(BATCH, device=DEVICE)
    side = rungs.build(rung, context)
    try:
        records = [side.step(stamps)]
        side.finish()
        nobody_waits()
        records += [side.step(stamps) for _ in range(2 * CLIP.frames // BATCH)]
        side.finish()
    finally:
        side.close()
    wrong = (torch.cat(records) != 1).nonzero().flatten()
    assert wrong.tolist() == [], "these frames did not arrive in their turn, or look like others"


def held_mib() -> tuple[float, float]:
    """Returns the bytes of tensors, and those in use on the whole device."""
    free, total = torch.cuda.mem_get_info(DEVICE)
    return torch.cuda.memory_allocated(DEVICE) / MIB, (total - free) / MIB


@needs("av", "torchvision", "PyNvVideoCodec", "triton")
def test_device_memory_is_flat(context: Context) -> None:
    """Over 10,000 frames, a file each round, after the first four: both are measured where as much is on its way.

    torch may still reserve a segment or two when stages happen to overlap in a new way; a batch lost with every file
    would be more, and so would memory that only one file can use.
    """
    stamps = torch.ones(BATCH, device=DEVICE)
    side = rungs.build(rungs.OVERLAPPED, context)
    try:
        held = []
        for rounds in (4, math.ceil(10_000 / CLIP.frames)):
            for _ in range(rounds * CLIP.frames // BATCH):
                side.step(stamps)
            side.finish()
            held.append(held_mib())
    finally:
        side.close()
    by_tensors, on_device = (after - before for before, after in zip(*held, strict=True))
    assert by_tensors < 4, f"tensors hold {by_tensors:.1f} MiB more"
    assert on_device < 2 * SEGMENT_MIB + 8, f"{on_device:.1f} MiB more are used"
