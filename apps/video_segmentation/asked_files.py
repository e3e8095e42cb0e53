"""Checks of the files that the user names, made before the program runs; each refusal is one sentence."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import torch

from gpugate.workload import DeviceKind
from workloads.video import segment
from workloads.video.clip import CLIPS, CODECS
from workloads.video.encoders import Mp4v
from workloads.video.pipeline import Rung

NETWORKS: Mapping[DeviceKind, str] = {
    "cuda": f"FCN-ResNet101 ({segment.NETWORKS['cuda']})",
    "cpu": f"LR-ASPP MobileNetV3-Large ({segment.NETWORKS['cpu']})",
}
MP4V_SUFFIXES = (".mp4", ".mov", ".avi")


def refuse_one_file_twice(asked: argparse.Namespace) -> None:
    """Raises ValueError for a file that is named twice, before anything is read or written."""
    named = {
        "the input": asked.input,
        "--checkpoint": asked.checkpoint,
        "the output": asked.output,
        "--json": asked.json,
    }
    given = [(what, path) for what, path in named.items() if path is not None]
    for (what, path), (other, another) in combinations(given, 2):
        if path.resolve() == another.resolve() or (path.exists() and another.exists() and path.samefile(another)):
            raise ValueError(f"{another} is {what} too: name another file for {other}")


def refuse_suffixes(rung: Rung, asked: argparse.Namespace) -> None:
    """Raises ValueError for file names whose suffix belongs to another kind of file than the rung writes."""
    if rung.encoder is not Mp4v:
        return  # the other encoders refuse such names themselves before they encode
    if asked.output.suffix.lower() not in MP4V_SUFFIXES:
        reason = f"--variant {asked.variant} encodes MPEG-4 Part 2"
        raise ValueError(f"{asked.output} cannot be written ({reason}): let its name end in {', '.join(MP4V_SUFFIXES)}")


def refuse_unwritable(option: str, path: Path | None) -> None:
    """Raises OSError where no file can be written: the user should not learn that after a long run."""
    if path is None:
        return
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        problem = f"{option} {path} cannot be written ({error.strerror})"
        raise OSError(f"{problem}: name a file in a folder that exists and may be written to") from error


def is_our_own(video: Path) -> bool:
    """True for a clip of the suite, recognized by the parameters in its name."""
    ours = (replace(clip, codec=codec).file_name for clip in CLIPS.values() for codec in CODECS)
    return video.resolve().name in ours


def warn_of_masks(video: Path, device: torch.device) -> None:
    reason = "without --checkpoint the masks come from random features fitted to the suite's own clip"
    advice = f"give weights of torchvision's {NETWORKS[_kind(device)]}"
    print(f"warning: {reason}, of little use for {video}: {advice}", file=sys.stderr)


def _kind(device: torch.device) -> DeviceKind:
    return "cuda" if device.type == "cuda" else "cpu"


def make_folder(cache: Path) -> None:
    """Makes the cache folder; raises OSError where it is not writable."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            pass
    except OSError as error:
        problem = f"--cache {cache} cannot be written ({error.strerror})"
        raise OSError(f"{problem}: name a folder that may be written to") from error


def refuse_other_checkpoint(path: Path, device: torch.device) -> None:
    """Raises ValueError unless the file holds weights of the segmenter for this device."""
    if not path.is_file():
        raise ValueError(
            f"--checkpoint {path} is {'no file' if path.exists() else 'not there'}: name a file of weights"
        )
    names = _weight_names(path)
    if "fc.weight" in names:
        raise ValueError(f"--checkpoint {path} holds the weights of a classifier: name one of a segmenter's")
    try:
        segment.checkpoint(_kind(device), path, "--checkpoint")
    except ValueError as error:  # torch's message, many lines of names
        where = "on a GPU" if device.type == "cuda" else "on a CPU"
        segments = any(name.startswith("backbone.") for name in names)
        found = "holds the weights of another network" if segments else "holds no weights of a segmenter"
        advice = f"{where} the program takes a state_dict of torchvision's {NETWORKS[_kind(device)]}"
        raise ValueError(f"--checkpoint {path} {found}: {advice}") from error


def _weight_names(path: Path) -> frozenset[str]:
    """The names in a state_dict; empty for a damaged file, which its reader refuses later."""
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        return frozenset(name for name in stored if isinstance(name, str))
    except Exception:  # zip archives, unpickling and the file system raise many kinds of errors
        return frozenset()
