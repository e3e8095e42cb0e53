"""The pipeline as a program: `python -m apps.video_segmentation IN.mp4 OUT.mp4`.

Segments a video, blurs its background, and writes the result, without sound, with the time that every stage took. Runs
in the checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from apps.video_segmentation.announced_end import announced_frames
from apps.video_segmentation.asked_files import (
    NETWORKS,
    is_our_own,
    make_folder,
    refuse_one_file_twice,
    refuse_other_checkpoint,
    refuse_suffixes,
    refuse_unwritable,
    warn_of_masks,
)
from apps.video_segmentation.stage_clock import StageClock
from gpugate.workload import Context
from workloads.parts.kept_files import replacing_file
from workloads.parts.tensorrt_engine import TENSORRT_LIBRARY
from workloads.video import pipeline as rungs
from workloads.video.clip import BATCH, INSTALL_VIDEO
from workloads.video.frames import VideoError, VideoInfo, examine
from workloads.video.pipeline import Pipeline, Rung

VARIANTS: Mapping[str, Rung] = {
    "baseline": rungs.REFERENCE,
    "optimized": rungs.X264,
    "optimized-x264": rungs.X264,
    "optimized-tensorrt": rungs.TENSORRT_STAGES,
    "optimized-nvjpeg": rungs.OVERLAPPED,
    "optimized-nvenc": rungs.NVENC,
    "optimized-on-cpu": rungs.ON_CPU,
}
SHARE = "ms per frame; share: of the whole run, more than 100 % together where stages overlap"
COUNTED = "the suite counts how much it really is: pytest perf_tests -m gpu -k video/end-to-end"
# By the names under which they are imported.
PACKAGES = ("av", "cv2", "cvcuda", "PyNvVideoCodec", "torchvision", "triton")
# the errors that OpenCV and FFmpeg raise; many of them derive from Exception alone
ERRORS_OF_LIBRARIES = {"cv2": "error", "av": "FFmpegError"}
# OpenCV, which reads this before it opens its first file, lets FFmpeg write a line on stderr for each damaged packet.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # AV_LOG_QUIET
FAILED = 1  # exit status; argparse takes 2 for wrong arguments


@dataclass(frozen=True)
class Run:
    """The results of one run, and its durations: from its start, and from the moment when everything was built.

    `process_s` is the time from the start of the process, imports included, until the output was complete.
    """

    output: Path
    frames: int
    bit_rate_mbit_s: float
    start_up_s: float
    seconds: float
    process_s: float
    clock: StageClock


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; returns 0 when the whole video is written, else 1 after one sentence on stderr."""
    asked = _parser().parse_args(arguments)
    try:
        asked.variant = asked.variant or ("optimized" if torch.cuda.is_available() else "optimized-on-cpu")
        run = _run(_rung(asked.variant), asked)
        if asked.json is not None:
            with replacing_file(asked.json) as partial:
                partial.write_text(json.dumps(_figures(run, asked), indent=1) + "\n")
    except _errors() as error:
        print(f"error: {_said(error)}", file=sys.stderr)  # VideoError and EncodingError among them
        return FAILED
    except (KeyboardInterrupt, SystemExit) as ending:  # the latter on SIGTERM
        print(f"interrupted: {asked.output} is not written", file=sys.stderr)
        return int(getattr(ending, "code", 130))  # the exit status that shells use
    _tell(run, asked.variant)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m apps.video_segmentation", description=__doc__)
    parser.add_argument("input", metavar="IN", type=Path, help="a video: 8 bits, 4:2:0, of a constant frame rate")
    parser.add_argument(
        "output",
        metavar="OUT",
        type=Path,
        help="what is written: H.264 in .mp4 (MPEG-4 Part 2 by baseline and optimized-on-cpu); by optimized-nvjpeg "
        "and optimized-tensorrt Motion JPEG in .mov, with many times the bits",
    )
    parser.add_argument(
        "--variant", choices=VARIANTS, help="default: optimized with a GPU, optimized-on-cpu without", default=None
    )
    parser.add_argument(
        "--checkpoint",
        metavar="FILE",
        type=Path,
        help=(
            f"a state_dict of torchvision's {NETWORKS['cuda']} on a GPU, of {NETWORKS['cpu']} on a CPU and for "
            "optimized-on-cpu (default: fitted to the suite's own clip, of little use for another)"
        ),
    )
    parser.add_argument(
        "--cache",
        metavar="DIR",
        type=Path,
        default=Path(".gpugate-cache"),
        help="where fitted weights are kept from one run to the next (default: %(default)s, as the suite does)",
    )
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="seconds from the start of the process, and every stage's share, too"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def _errors() -> tuple[type[Exception], ...]:
    """Errors that the video, an option or the machine can cause."""
    return OSError, ValueError, RuntimeError, ImportError, *_errors_of_libraries()


def _errors_of_libraries() -> tuple[type[Exception], ...]:
    """Error classes of the imported libraries; any of the libraries may be missing."""
    return tuple(
        getattr(sys.modules[module], error) for module, error in ERRORS_OF_LIBRARIES.items() if sys.modules.get(module)
    )


def _said(error: Exception) -> str:
    """The error as one sentence with the next step, also where a library writes several lines."""
    if isinstance(error, ModuleNotFoundError) and error.name in PACKAGES:
        return f"the package {error.name} is missing: {INSTALL_VIDEO}"
    if isinstance(error, _errors_of_libraries()):
        library = type(error).__module__.partition(".")[0]
        return f"{library} failed ({' '.join(str(error).split())}): make the video anew, or take another --variant"
    return str(error)


def _rung(variant: str) -> Rung:
    """The rung of a variant; raises ValueError for a variant that needs a GPU where torch sees none."""
    if variant not in ("baseline", "optimized-on-cpu") and not torch.cuda.is_available():
        raise ValueError(f"--variant {variant} needs a CUDA GPU, and torch sees none: take optimized-on-cpu")
    rung = VARIANTS[variant]
    problem = TENSORRT_LIBRARY.why_not(0) if rung == rungs.TENSORRT_STAGES else None
    if problem is not None:
        raise ValueError(f"--variant {variant}: {problem}")
    return rung


def _run(rung: Rung, asked: argparse.Namespace) -> Run:
    began = time.perf_counter()
    source, target, cache = asked.input, asked.output, asked.cache
    refuse_one_file_twice(asked)
    refuse_suffixes(rung, asked)
    refuse_unwritable("the output", target)
    refuse_unwritable("--json", asked.json)
    info = examine(source)
    device = torch.device("cuda", 0) if torch.cuda.is_available() and rung != rungs.ON_CPU else torch.device("cpu")
    make_folder(cache)
    if asked.checkpoint is not None:
        refuse_other_checkpoint(asked.checkpoint, device)
    elif not is_our_own(source):
        warn_of_masks(source, device)
    settings = {} if asked.checkpoint is None else {"segmenter-weights": str(asked.checkpoint)}
    context = Context(device, BATCH, 0, cache, settings=settings)
    clock = StageClock(device)
    with (
        rung.encoder(target, info, device) as encoder,
        closing(Pipeline(rung, context, info, encoder.write, clock=clock)) as pipeline,
    ):
        built = time.perf_counter()
        _through(pipeline, info, asked.quiet)
    frames = encoder.frames
    announced = announced_frames(info)
    if frames < announced:
        gave = f"{source} gave {frames} of its {announced} frames, since it was cut short or is damaged"
        raise VideoError(f"{gave}: make it anew; {target} holds the {frames} frames")
    seconds, process_s = time.perf_counter() - built, age_s()
    bit_rate_mbit_s = 8e-6 * target.stat().st_size * float(info.frames_per_second) / frames
    return Run(target, frames, bit_rate_mbit_s, built - began, seconds, process_s, clock)


def _through(pipeline: Pipeline, info: VideoInfo, quiet: bool) -> None:
    columns = TextColumn(info.path.name), BarColumn(), MofNCompleteColumn(), TextColumn("frames"), TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet)
    with bar:
        task = bar.add_task("", total=info.frames)
        while (batch := pipeline.take()) is not None:
            bar.advance(task, len(batch.content))


def _tell(run: Run, name: str) -> None:
    """Prints the table of stages and the results of the run."""
    frames = run.frames
    total_ms = run.seconds * 1e3
    table = Table(title=name, title_justify="left", box=None, header_style="bold")
    times = run.clock.times(frames)
    on_device = any(each.device_ms is not None for each in times)
    for heading in ("stage", "host ms", *(["device ms"] if on_device else []), "share"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for each in times:
        longest_ms = max(each.host_ms, each.device_ms or 0.0)
        device_ms = [f"{each.device_ms:.2f}"] if each.device_ms is not None else [""] if on_device else []
        table.add_row(each.name, f"{each.host_ms:.2f}", *device_ms, f"{100 * longest_ms * frames / total_ms:.0f} %")
    console = Console()
    console.print(table)
    console.print(SHARE, style="dim", soft_wrap=True)
    if on_device:
        share = 100 * run.clock.device_ms() / total_ms
        most = f"GPU active for at most {share:.0f} % of the time: so long a stage's stream was open, idle or not"
        console.print(f"{most}; {COUNTED}", highlight=False, soft_wrap=True)
    whole_s = run.start_up_s + run.seconds
    console.print(
        f"{frames} frames in {run.seconds:.2f} s, {frames / run.seconds:.0f} frames/s; "
        f"with start-up {whole_s:.2f} s, with imports {run.process_s:.2f} s; "
        f"{run.bit_rate_mbit_s:.1f} Mbit/s in {run.output}",
        highlight=False,
        soft_wrap=True,
    )


def _figures(run: Run, asked: argparse.Namespace) -> dict[str, object]:
    """The figures by which two runs of the program are compared; times in s, times of stages in ms per frame.

    Figures of the device are None where the run used no device.
    """
    frames = run.frames
    stages = run.clock.times(frames)
    on_device = any(each.device_ms is not None for each in stages)
    return {
        "variant": asked.variant,
        "input": str(asked.input),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "frames": frames,
        "process_s": run.process_s,
        "imports_s": run.process_s - run.start_up_s - run.seconds,
        "start_up_s": run.start_up_s,
        "pipeline_s": run.seconds,
        "frames_per_second": frames / run.seconds,
        "bit_rate_mbit_s": run.bit_rate_mbit_s,
        "stages": [asdict(each) for each in stages],
        "device_active_at_most_s": run.clock.device_ms() / 1e3 if on_device else None,
    }


def age_s(process: str = "self") -> float:
    """Time in s since the process was started, imports included; Linux keeps it to 10 ms."""
    fields = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()
    began_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # proc(5): field 22, of which two end with the parenthesis
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began_s


def _ended(number: int, frame: object) -> None:
    """Ends the program on a signal as Ctrl-C does: open files are closed, and incomplete files are removed."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _ended)
    sys.exit(main())
