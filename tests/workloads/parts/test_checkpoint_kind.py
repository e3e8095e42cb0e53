"""One checkpoint, two kinds of networks: it is for one of them, and the other one keeps its own weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torchvision.models import resnet50 as architecture

from gpugate.workload import Context
from workloads.parts.checkpoint_kind import is_of_classifier, is_of_segmenter
from workloads.parts.resnet50_weights import resnet50
from workloads.video.clip.clip import Clip
from workloads.video.segment.segmenter import segmenter

TINY = Clip(312, 192, 24)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(torch.device("cpu"), 1, 0, tmp_path)


def saved(path: Path, names: dict[str, torch.Tensor]) -> Path:
    torch.save(names, path)
    return path


def test_kinds_are_told_by_names(tmp_path: Path) -> None:
    one = torch.ones(1)
    classifier = saved(tmp_path / "classifier.pt", {"conv1.weight": one, "fc.weight": one})
    network = saved(tmp_path / "network.pt", {"backbone.conv1.weight": one, "classifier.4.weight": one})
    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes(b"PK")
    assert [is_of_classifier(path) for path in (classifier, network, damaged)] == [True, False, False]
    assert [is_of_segmenter(path) for path in (classifier, network, damaged)] == [False, True, False]


def test_a_classifiers_checkpoint_leaves_the_segmenter_as_it_was(context: Context, tmp_path: Path) -> None:
    torch.manual_seed(5)
    path = saved(tmp_path / "resnet50.pt", architecture().state_dict())
    given = replace(context, checkpoint_path=path)
    assert torch.equal(resnet50(given).fc.weight, torch.load(path, weights_only=True)["fc.weight"])
    own, others = (segmenter("cpu", each, TINY).state_dict() for each in (context, given))
    assert all(torch.equal(own[name], others[name]) for name in own)


def test_a_segmenters_checkpoint_leaves_resnet50_as_it_was(context: Context, tmp_path: Path) -> None:
    path = saved(tmp_path / "network.pt", segmenter("cpu", context, TINY).coarse.state_dict())
    assert is_of_segmenter(path)
    given = replace(context, checkpoint_path=path)
    assert torch.equal(resnet50(given).fc.weight, resnet50(context).fc.weight)
    assert segmenter("cpu", given, TINY).state_dict().keys() == segmenter("cpu", context, TINY).state_dict().keys()


@pytest.mark.parametrize("build", [resnet50, lambda context: segmenter("cpu", context, TINY)])
def test_a_damaged_one_is_refused_by_both(build, context: Context, tmp_path: Path) -> None:
    path = tmp_path / "damaged.pt"
    path.write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"--perf-checkpoint .*damaged\.pt holds no state_dict of torchvision's"):
        build(replace(context, checkpoint_path=path))
