"""A capture that nsys could not import is searched as bytes for what no list allows."""

from pathlib import Path

import pytest

from gpugate.profiling.capture_index import FOLDER_VARIABLE
from gpugate.profiling.foreign_variables import found_in

SECRET = "hunter2-of-a-ci-job"
OWN = f"PATH=/bin\0{FOLDER_VARIABLE}=/tmp/x\0NSYS_SESSION=profile-1\0"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (f"\1\2CI_JOB_TOKEN={SECRET}", ["CI_JOB_TOKEN"]),
        (f"\n\x91\1!PATH=/bin\0http_proxy={SECRET}\0", ["http_proxy"]),
        (f"said\nCI_JOB_TOKEN={SECRET}\nmore", ["CI_JOB_TOKEN"]),  # what a test printed
        (f"sshd: root@pts/0\0CI_JOB_TOKEN={SECRET}\0", ["CI_JOB_TOKEN"]),
        ("BASH_FUNC_f%%=() { true; }\0A=1\0", ["A", "BASH_FUNC_f%%"]),
        (f"{OWN}\n\x85\x21PATH=/bin\0CI_JOB_TOKEN={SECRET}", ["CI_JOB_TOKEN"]),
        (f"{OWN[:-1]}\n\5PATH=/bin\0CI_JOB_TOKEN={SECRET}", ["CI_JOB_TOKEN"]),
    ],
)
@pytest.mark.parametrize("around", ["", "\0\3\xff\0"])
def test_variables_of_other_processes_are_named(tmp_path: Path, text: str, names: list[str], around: str) -> None:
    (tmp_path / "a.qdstrm").write_bytes(f"{around}{text}{around}".encode("latin-1"))
    assert found_in(tmp_path / "a.qdstrm", {}) == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        "PATH=/bin\0HOME=/home/me\0",
        "HOSTNAME=gate-1\0KUBERNETES_SERVICE_HOST=10.0.0.1\0KUBERNETES_PORT_443_TCP=tcp://10.0.0.1:443\0",  # of a pod
        OWN,
        "void gemm<a=b, (int)1>(float*)",
        "python\0-m\0pytest\0--nsys=folder\0--color=yes\0-k\0net",
        "\0\2seed=12345678\0\2A=1\0\2TOKEN=\0",
    ],
)
def test_other_bytes_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.qdstrm").write_text(text)
    assert found_in(tmp_path / "a.qdstrm", {}) == []


def test_a_value_of_ours_is_found_without_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.qdstrm").write_text(f"curl -H 'Bearer {SECRET}' {tmp_path} 580.159.04 conda-of-me run")
    hidden = {"TOKEN": SECRET, "PWD": str(tmp_path), "CUDA_DRIVER_VERSION": "580.159.04", "LONG": 5000 * "x"}
    environment = {"PATH": "/opt/conda-of-me/bin", "CONDA_DEFAULT_ENV": "conda-of-me", **hidden}
    assert found_in(tmp_path / "a.qdstrm", environment) == ["TOKEN"]
