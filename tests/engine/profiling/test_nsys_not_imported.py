"""A capture that nsys could not import is searched for values that no list allows."""

from pathlib import Path

from gpugate.profiling.foreign_variables import values_in

SECRET = "hunter2-of-a-ci-job"


def test_a_value_of_ours_is_found_without_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.qdstrm").write_text(f"curl -H 'Bearer {SECRET}' {tmp_path} 580.159.04 conda-of-me run")
    hidden = {
        "_": "conda-of-me run",
        "TOKEN": SECRET,
        "PWD": str(tmp_path),
        "CUDA_DRIVER_VERSION": "580.159.04",
        "LONG": 5000 * "x",
    }
    environment = {"PATH": "/opt/conda-of-me/bin", "CONDA_DEFAULT_ENV": "conda-of-me", **hidden}
    assert values_in(tmp_path / "a.qdstrm", environment) == ["TOKEN"]


def test_an_empty_capture_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.qdstrm").touch()
    assert values_in(tmp_path / "a.qdstrm", {"TOKEN": SECRET}) == []
