"""An option that excludes a profile is refused in one sentence."""

import pytest

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
