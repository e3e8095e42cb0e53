"""The program that segments a video, on a CPU: it writes the whole video, or one sentence says why it does not."""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from apps.video_segmentation import __main__ as program
from apps.video_segmentation.__main__ import Run, main
from tests.support.copied_clips import cut_short
from tests.support.small_models import clip_on_cpu
from workloads.video.clip import Clip, clip_path
from workloads.video.decode import HostDecoder

TINY = Clip(312, 192, 24)  # an exact third of it is what the network gets, as of 1080p


@pytest.fixture(autouse=True)
def tiny_clip(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with clip_on_cpu(monkeypatch, TINY):
        yield


@pytest.fixture
def video(cache_dir: Path) -> Path:
    return clip_path(cache_dir, TINY)


@pytest.mark.parametrize("variant", ["baseline", "optimized-on-cpu"])
def test_the_program_writes_the_whole_video_whose_last_batch_is_smaller(
    variant: str, cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video, target = clip_path(cache_dir, replace(TINY, frames=19)), tmp_path / "out.mp4"
    assert main([str(video), str(target), f"--variant={variant}", f"--cache={cache_dir}"]) == 0
    told = capsys.readouterr().out
    stages = [line.split()[0] for line in told.splitlines() if line.endswith(" %") or line.endswith(" % ")]
    assert sorted(stages) == ["composite", "decode", "encode", "preprocess", "segment"]
    assert "19 frames in " in told
    assert f"Mbit/s in {target}" in told
    with closing(HostDecoder(target)) as decoder:
        assert len(decoder.read(100)) == 19


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("{folder}/missing.mp4 {folder}/out.mp4", "missing.mp4 is not there"),
        ("{video} {folder}/no/out.mp4", "out.mp4 cannot be written"),
        ("{video} {folder}/out.mp4 --variant=optimized-nvjpeg", "needs a CUDA GPU"),
        ("{video} {folder}/out.mp4 --cache={video}", "cannot be written (File exists): name a folder that may be"),
        ("{video} {folder}/out.mp4 --checkpoint=no.pt", "--checkpoint no.pt is not there: name a file of weights"),
        ("{video} {folder}/out.mp4 --checkpoint={video}", ".mp4 is the input too: name another file for --checkpoint"),
        (
            f"{{video}} {{folder}}/out.mp4 --checkpoint={__file__}",
            f"--checkpoint {__file__} holds no weights of a segmenter: on a CPU the program takes a state_dict of ",
        ),
        ("{video} {folder}/out.mkv --variant=baseline", "(--variant baseline encodes MPEG-4 Part 2): let its name end"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    words: str, said: str, video: Path, cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [word.format(folder=tmp_path, video=video) for word in words.split()]
    assert main(["--quiet", f"--cache={cache_dir}", *arguments]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert said in told
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


NAMED = ("IN", "--checkpoint", "OUT", "--json")


@pytest.mark.parametrize(
    ("one", "other", "by"),
    [*((*pair, "path") for pair in combinations(NAMED, 2)), ("IN", "OUT", "link"), ("IN", "OUT", "hard link")],
)
def test_no_two_files_may_be_one(
    one: str,
    other: str,
    by: str,
    video: Path,
    cache_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The files may exist already or not."""
    (tmp_path / "folder").mkdir()
    own = tmp_path / "IN.mp4"
    own.write_bytes(video.read_bytes())
    paths = {"IN": own, **{name: tmp_path / f"{name.strip('-')}.mp4" for name in NAMED[1:]}}
    paths[other] = tmp_path / "folder" / ".." / paths[one].name
    if by == "link":
        paths[other] = tmp_path / "folder" / "link.mp4"
        paths[other].symlink_to(paths[one])
    if by == "hard link":
        paths[one].touch()
        paths[other] = tmp_path / "folder" / "link.mp4"
        paths[other].hardlink_to(paths[one])
    options = [f"{name}={paths[name]}" for name in NAMED if name.startswith("-") and name in (one, other)]
    before = sorted(tmp_path.rglob("*"))
    asked = [str(paths["IN"]), str(paths["OUT"]), "--variant=baseline", "--quiet", f"--cache={cache_dir}", *options]
    assert main(asked) == 1
    words = {"IN": "the input", "OUT": "the output"}
    said = f"error: {paths[other]} is {words.get(one, one)} too: name another file for {words.get(other, other)}\n"
    assert capsys.readouterr().err == said
    assert sorted(tmp_path.rglob("*")) == before
    assert own.read_bytes() == video.read_bytes()


@pytest.mark.parametrize(("variant", "suffix"), [("optimized-on-cpu", ".mp4"), ("baseline", ".mkv")])
def test_what_decodes_of_a_video_that_was_cut_short_is_written_and_then_it_fails(
    variant: str, suffix: str, cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = clip_path(cache_dir, replace(TINY, frames=90))
    short, target = cut_short(whole, tmp_path / f"short{suffix}"), tmp_path / "out.mp4"
    status = main([str(short), str(target), f"--variant={variant}", "--quiet", f"--cache={cache_dir}"])
    warning, told = capsys.readouterr().err.splitlines(keepends=True)
    assert warning.startswith("warning: without --checkpoint")
    assert status == 1
    (given, wanted), (held,) = (
        re.findall(r"gave (\d+) of its (\d+) frames", told)[0],
        re.findall(r"the (\d+) frames", told),
    )
    assert (given, wanted) == (held, "90")
    assert told.count("\n") == 1
    with closing(HostDecoder(target)) as decoder:
        assert len(decoder.read(100)) == int(held) > 8


@pytest.mark.parametrize(("ending", "status"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_a_program_that_is_interrupted_says_that_nothing_is_written(
    ending: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*_: object) -> Run:
        raise ending

    monkeypatch.setattr(program, "_run", ended)
    assert main(["in.mp4", "out.mp4", "--variant=baseline"]) == status
    assert capsys.readouterr().err == "interrupted: out.mp4 is not written\n"
