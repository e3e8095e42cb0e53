"""Files are named after test parameters: readable, safe, and different for different ones."""

import re

import pytest

from gpugate.profiling.capture_index import safe_name
from gpugate.profiling.isolated_environment import allowed_variables

LONG = "resnet/" + "x" * 193


@pytest.mark.parametrize(
    ("test_id", "name"),
    [
        ("two-layer-net/cuda-graph/cuda", "two-layer-net+cuda-graph+cuda"),
        ("video/decode/nvdec/cuda", "video+decode+nvdec+cuda"),
    ],
)
def test_an_ordinary_id_stays_readable(test_id: str, name: str) -> None:
    assert safe_name(test_id) == name


@pytest.mark.parametrize(
    ("test_id", "begins"),
    [
        ("a[1-x/y]", "a-1-x+y-"),
        ("größe/faß", "gr-e+fa-"),
        ("名前", "case-"),
        ("../../etc/passwd", "etc+passwd-"),
        ("A/b", "a+b-"),
        ("a+b", "a-b-"),
        ("a b\n|<c>", "a-b-c-"),
        ("", "case-"),
        ("\ud800", "case-"),
        (LONG, "resnet+xxx"),
    ],
)
def test_any_other_id_is_a_safe_name_with_a_hash(test_id: str, begins: str) -> None:
    name = safe_name(test_id)
    assert name.startswith(begins)
    assert re.fullmatch(r"[a-z0-9][a-z0-9._+-]*-[0-9a-f]{8}", name)
    assert len(name) <= 120


def test_ids_that_differ_have_names_that_do() -> None:
    ids = ["a/b", "a+b", "A/b", "a//b", "a b", "a-b", "a_b", "a[b]", "a(b)", "ä/b", "á/b", LONG, LONG + "x", LONG + "y"]
    ids.append(safe_name("a[b]"))  # the name of one as the id of another
    assert len({safe_name(test_id) for test_id in ids}) == len(ids)


def test_what_a_report_may_show_of_the_environment() -> None:
    secrets = {"CI_JOB_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PIP_INDEX_URL", "SSH_AUTH_SOCK", "PATH_TOKEN"}
    needed = {"PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "LC_ALL", "OMP_NUM_THREADS", "PYTHONPATH"}
    assert set(allowed_variables(dict.fromkeys(secrets | needed, "x"))) == needed
