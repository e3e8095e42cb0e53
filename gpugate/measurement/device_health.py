"""Check that a device still computes: after some errors CUDA refuses every call until the process ends."""

from __future__ import annotations

import torch


def lost(device: torch.device) -> str | None:
    """Returns one sentence why nothing can be measured on the device any more; None while it computes."""
    try:
        answer = int((torch.ones(2, device=device) + 1).sum().item())
    except RuntimeError as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"the device {device} stopped answering ({first_line}): look at dmesg and nvidia-smi, then run again"
    return None if answer == 4 else f"the device {device} gives {answer} for 4: it computes wrongly, take it out of use"
