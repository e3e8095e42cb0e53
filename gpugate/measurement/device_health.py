"""Whether a device still computes: after some errors CUDA refuses everything until the process ends."""

from __future__ import annotations

import torch


def lost(device: torch.device) -> str | None:
    """Why nothing can be measured on the device any more, in one sentence; None while it answers."""
    try:
        answer = int((torch.ones(2, device=device) + 1).sum().item())
    except RuntimeError as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"the device {device} stopped answering ({first_line}): look at dmesg and nvidia-smi, then run again"
    return None if answer == 4 else f"the device {device} gives {answer} for 4: it computes wrongly, take it out of use"
