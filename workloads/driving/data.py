"""The driving frames on disk: every picture as raw bytes in one file and as a JPEG of its own, with its targets.

The frames are made once and kept: in a temporary folder beside the final one, which appears whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from workloads.driving.scenes import WAYPOINTS, Rig, scene

VERSION = 1  # of the pictures and of the files: another version is another folder
JPEG_QUALITY = 90
RAW, JPEG, LABELS = "frames.raw", "jpeg", "labels.npz"
SPACE = 1.3  # bytes on disk per raw byte: the JPEGs come on top


@dataclass(frozen=True)
class Frames:
    """The stored frames: `raw` is uint8 [frames, cameras, 3, height, width], mapped from the file and read on use.

    `raw_sums` and `jpeg_sums` are the sums of the bytes of every picture, int64 [frames, cameras]: of the raw picture,
    and of the picture that the host's decoder makes of the JPEG. `commands` is int64 [frames], `waypoints` float32
    [frames, WAYPOINTS, 2].
    """

    folder: Path
    rig: Rig
    raw: Tensor
    commands: Tensor
    waypoints: Tensor
    raw_sums: Tensor
    jpeg_sums: Tensor

    def __len__(self) -> int:
        return self.raw.shape[0]

    def jpegs(self, frame: int) -> list[Tensor]:
        """The JPEG of every camera as uint8 [bytes]; raises ValueError naming a file that is missing or empty."""
        return [_file_bytes(path) for path in self.jpeg_paths(frame)]

    def jpeg_paths(self, frame: int) -> list[Path]:
        return [_jpeg_path(self.folder, frame, camera) for camera in range(self.rig.cameras)]

    def decoded(self, frame: int) -> Tensor:
        """The JPEGs of a frame, decoded by the host: uint8 [cameras, 3, height, width].

        Raises ValueError naming the file that is missing, corrupt or of another size. A decoder only warns of damage
        within a picture and continues, so the sums are compared, which takes a quarter of the decoding time.
        """
        paths = self.jpeg_paths(frame)
        pictures = torch.stack([_decoded(path, self.rig) for path in paths])
        sums = pictures.numpy().reshape(len(paths), -1).sum(1, dtype=np.int64)  # a tenth of the time of PyTorch's sum
        for path, found, stored in zip(paths, sums.tolist(), self.jpeg_sums[frame].tolist(), strict=True):
            if found != stored:
                raise ValueError(f"{path} decodes to another picture than was stored: {_made_again(path)}")
        return pictures


def stored_frames(cache_dir: Path, rig: Rig, count: int, seed: int) -> Frames:
    """The frames of a folder below `cache_dir`, made first where it is not there yet.

    Raises ValueError for a folder that is incomplete, OSError where there is no room for it; both name it.
    """
    folder = cache_dir / f"driving-v{VERSION}-{rig.cameras}x{rig.height}x{rig.width}-{count}-seed{seed}"
    if not folder.is_dir():
        _make(folder, rig, count, seed)
    return _opened(folder, rig, count)


def _make(folder: Path, rig: Rig, count: int, seed: int) -> None:
    needed, free = int(SPACE * rig.frame_bytes * count), shutil.disk_usage(folder.parent).free
    if free < needed:
        room = f"{free / 1e9:.1f} GB free and the driving frames need {needed / 1e9:.1f} GB"
        raise OSError(f"{folder.parent} has {room}: free some space there")
    with _written_whole(folder) as unfinished:
        (unfinished / JPEG).mkdir()
        with (unfinished / RAW).open("wb") as raw:
            raw.truncate(count * rig.frame_bytes)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            told = list(pool.map(lambda frame: _store(unfinished, rig, seed, frame), range(count)))
        commands, waypoints, raw_sums, jpeg_sums = map(np.stack, zip(*told, strict=True))
        labels = unfinished / LABELS
        np.savez(labels, commands=commands, waypoints=waypoints, raw_sums=raw_sums, jpeg_sums=jpeg_sums)


@contextmanager
def _written_whole(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` at the end; after an error nothing of it is left."""
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield unfinished
        unfinished.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # else another process was faster, and its frames are the same
            reason = error.strerror or str(error)
            raise OSError(f"{folder} cannot be written ({reason}): make room or give the right to write") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _store(folder: Path, rig: Rig, seed: int, frame: int) -> tuple[np.int64, np.ndarray, np.ndarray, np.ndarray]:
    """Writes one frame; returns its command, waypoints, and the sums of its raw and of its decoded pictures."""
    from torchvision.io import encode_jpeg

    made = scene(rig, seed, frame)
    with (folder / RAW).open("r+b") as raw:
        raw.seek(frame * rig.frame_bytes)
        raw.write(made.pictures.tobytes())
    jpeg_sums = np.zeros(rig.cameras, dtype=np.int64)
    for camera, picture in enumerate(made.pictures):
        path = _jpeg_path(folder, frame, camera)
        path.write_bytes(encode_jpeg(torch.from_numpy(picture), quality=JPEG_QUALITY).numpy().tobytes())
        jpeg_sums[camera] = int(_decoded(path, rig).sum(dtype=torch.int64))
    raw_sums = made.pictures.reshape(rig.cameras, -1).sum(axis=1, dtype=np.int64)
    return np.int64(made.command), made.waypoints, raw_sums, jpeg_sums


def _opened(folder: Path, rig: Rig, count: int) -> Frames:
    wanted, raw = count * rig.frame_bytes, folder / RAW
    found = raw.stat().st_size if raw.is_file() else 0
    if found != wanted:
        raise ValueError(f"{raw} has {found} of {wanted} bytes: delete the folder {folder}, it is made again")
    shape = (count, rig.cameras, 3, rig.height, rig.width)
    mapped = torch.from_file(str(raw), shared=False, size=wanted, dtype=torch.uint8).view(shape)
    return Frames(folder, rig, mapped, *_labels(folder, rig, count))


def _labels(folder: Path, rig: Rig, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shapes = {
        "commands": (count,),
        "waypoints": (count, WAYPOINTS, 2),
        "raw_sums": (count, rig.cameras),
        "jpeg_sums": (count, rig.cameras),
    }
    path = folder / LABELS
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in shapes}
    except Exception as error:  # a damaged zip file can raise OSError, ValueError, KeyError, BadZipFile ...
        reason = f"cannot be read ({type(error).__name__})"
        raise ValueError(f"{path} {reason}: delete the folder {folder}, it is made again") from error
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            reason = f"holds {name} of shape {arrays[name].shape} instead of {shape}"
            raise ValueError(f"{path} {reason}: delete the folder {folder}, it is made again")
    commands, waypoints, raw_sums, jpeg_sums = (torch.from_numpy(arrays[name]) for name in shapes)
    return commands, waypoints, raw_sums, jpeg_sums


def _jpeg_path(folder: Path, frame: int, camera: int) -> Path:
    return folder / JPEG / f"frame{frame:04d}-camera{camera}.jpg"


def _file_bytes(path: Path) -> Tensor:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): {_made_again(path)}") from error
    if not content:
        raise ValueError(f"{path} is empty: {_made_again(path)}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _decoded(path: Path, rig: Rig) -> Tensor:
    from torchvision.io import ImageReadMode, decode_jpeg

    content = _file_bytes(path)
    try:
        picture: Tensor = decode_jpeg(content, ImageReadMode.RGB)
    except RuntimeError as error:
        raise ValueError(f"{path} is no JPEG that can be decoded: {_made_again(path)}") from error
    if picture.shape != (3, rig.height, rig.width):
        shown = f"{picture.shape[2]} x {picture.shape[1]} pixels instead of {rig.width} x {rig.height}"
        raise ValueError(f"{path} has {shown}: {_made_again(path)}")
    return picture


def _made_again(path: Path) -> str:
    return f"delete the folder {path.parent.parent}, it is made again"
