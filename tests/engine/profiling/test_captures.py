"""The options of a profile, the names of its files, and the variables that it may show."""

import re

import pytest

from gpugate.profiling.capture_index import safe_name
from gpugate.profiling.nsight_reports import allowed_variables
from gpugate.session.options import Profiling, read_options
from tests.support.tiny_project import TinyProject, check_no_traceback


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--nsys", "--gate"], "--gate needs timings, and under a profiler they are not judged"),
        (
            ["--nsys", "--update-baselines"],
            "--update-baselines needs timings, and under a profiler they are not judged",
        ),
        (["--ncu", "--perf-json=run.json"], "--perf-json needs timings, and under a profiler they are not judged"),
        (["--nsys", "--ncu"], "--nsys and --ncu would disturb each other: run one after the other"),
        (["--nsys", "perf_tests"], "--nsys perf_tests could mean tests to run: write --nsys=perf_tests"),
        (["--nsys="], "--nsys= names nothing: give a value behind it, or --nsys alone"),
        (["--ncu=0"], "--ncu is '0': give a whole number from 1 to 10000"),
        (["--nsys", "-n2"], "--nsys with -n would put the steps of several tests into one profile: use -n 0"),
    ],
)
def test_what_cannot_go_with_a_profile(tiny: TinyProject, options: list[str], sentence: str) -> None:
    before = tiny.files()
    result = tiny.run(*options)
    assert result.status == pytest.ExitCode.USAGE_ERROR
    assert sentence in result.text
    check_no_traceback(result.text)
    assert tiny.files() == before


def test_what_was_asked_for(pytester: pytest.Pytester) -> None:
    def read(*options: str) -> Profiling | None:
        return read_options(pytester.parseconfig("-p", "gpugate.plugin", *options)).profiling

    assert read() is None
    assert read("--nsys") == Profiling("nsys", pytester.path / "gpugate-nsys")
    assert read("--nsys=a b") == Profiling("nsys", pytester.path / "a b")
    assert read("--ncu=3") == Profiling("ncu", pytester.path / "gpugate-ncu", kernels=3)
    assert read("--torch-trace") == Profiling("torch-trace", pytester.path / "gpugate-traces")


LONG = "resnet/" + "x" * 193


@pytest.mark.parametrize(
    ("test_id", "begins"),
    [
        ("two-layer-net/cuda-graph/cuda", "two-layer-net+cuda-graph+cuda"),
        ("a[1-x/y]", "a-1-x+y-"),
        ("größe/faß", "gr-e+fa-"),
        ("../../etc/passwd", "etc+passwd-"),
        ("a b\n|<c>", "a-b-c-"),
        ("", "case-"),
        ("\ud800", "case-"),
        (LONG, "resnet+xxx"),
    ],
)
def test_an_id_is_a_safe_name_that_ends_with_a_hash_where_it_was_changed(test_id: str, begins: str) -> None:
    name = safe_name(test_id)
    assert name.startswith(begins)
    assert re.fullmatch(r"[a-z0-9][a-z0-9._+-]*(-[0-9a-f]{8})?", name)
    assert (name == begins) == (test_id == "two-layer-net/cuda-graph/cuda")
    assert len(name) <= 120


def test_ids_that_differ_have_names_that_do() -> None:
    ids = ["a/b", "a+b", "A/b", "a//b", "a b", "a-b", "a_b", "a[b]", "a(b)", "ä/b", "á/b", LONG, LONG + "x", LONG + "y"]
    ids.append(safe_name("a[b]"))  # the name of one as the id of another
    assert len({safe_name(test_id) for test_id in ids}) == len(ids)


def test_what_a_report_may_show_of_the_environment() -> None:
    secrets = {"CI_JOB_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PIP_INDEX_URL", "SSH_AUTH_SOCK", "PATH_TOKEN"}
    needed = {"PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "LC_ALL", "OMP_NUM_THREADS", "PYTHONPATH"}
    assert set(allowed_variables(dict.fromkeys(secrets | needed, "x"))) == needed
