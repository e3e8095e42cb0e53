"""Drafts change the number of the model's steps, never its tokens."""

from typing import Any

import pytest
import torch

from gpugate.errors import DisprovedError
from gpugate.workload import Context
from workloads.llm import speculative
from workloads.llm.speculative import SPAN_TOKENS, count_checks, span, tokens_per_check


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


def test_the_model_runs_once_for_each_check_of_the_script(tiny: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    side = speculative.speculative(tiny)
    checks: list[int] = []
    real = speculative.pick_likeliest

    def counted(logits: torch.Tensor) -> torch.Tensor:
        checks.append(logits.shape[1])
        return real(logits)

    monkeypatch.setattr(speculative, "pick_likeliest", counted)
    inputs = span(tiny, 2)
    side.step(inputs)
    assert len(checks) == count_checks(inputs.right)
    assert sum(checks) > SPAN_TOKENS


@pytest.mark.parametrize(("right", "checks"), [(True, 2), (False, SPAN_TOKENS)])
def test_checks_of_a_draft_that_is_always_or_never_right(right: bool, checks: int) -> None:
    assert count_checks(torch.full((SPAN_TOKENS,), right)) == checks


@pytest.mark.parametrize("acceptance", [0.5, 0.8, 0.95])
def test_the_mean_of_tokens_a_check_is_that_of_the_formula(acceptance: float) -> None:
    right = torch.rand(20_000, generator=torch.Generator().manual_seed(0)) < acceptance
    assert len(right) / count_checks(right) == pytest.approx(tokens_per_check(acceptance, 4), rel=0.02)
