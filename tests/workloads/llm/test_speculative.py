"""Drafts change the number of the model's steps, never its tokens."""

from typing import Any

import pytest
import torch

from gpugate.errors import DisprovedError
from gpugate.workload import Context
from workloads.llm import speculative
from workloads.llm.speculative import SPAN_TOKENS, span


def test_drafts_that_nobody_checks_are_disproved(tiny: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    real = speculative.pick_likeliest

    def trusting(logits: torch.Tensor) -> torch.Tensor:
        return real(logits) if logits.shape[1] in (1, 128) else trusted(logits)

    def trusted(logits: torch.Tensor) -> torch.Tensor:
        proposed = [drafts.pop() for _ in range(logits.shape[1] - 1)][::-1]
        return torch.cat((*proposed, real(logits)[:, -1:]), dim=1)

    drafts: list[torch.Tensor] = []
    script = speculative.follow_script

    def keep_drafts(*arguments: Any) -> torch.Tensor:
        drafts.append(script(*arguments))
        return drafts[-1]

    monkeypatch.setattr(speculative, "follow_script", keep_drafts)
    monkeypatch.setattr(speculative, "pick_likeliest", trusting)
    with pytest.raises(DisprovedError, match="drafts were accepted unchecked"):
        speculative.prove_the_tokens(tiny)


@pytest.mark.parametrize(("right", "checks"), [(True, 2), (False, SPAN_TOKENS)])
def test_the_model_checks_all_drafts_in_one_step(
    tiny: Context, monkeypatch: pytest.MonkeyPatch, right: bool, checks: int
) -> None:
    side, counted, real = speculative.speculative(tiny), list[int](), speculative.pick_likeliest

    def count(logits: torch.Tensor) -> torch.Tensor:
        counted.append(logits.shape[1])
        return real(logits)

    monkeypatch.setattr(speculative, "pick_likeliest", count)
    side.step(span(tiny, 2)._replace(right=torch.full((SPAN_TOKENS,), right)))
    assert len(counted) == checks
