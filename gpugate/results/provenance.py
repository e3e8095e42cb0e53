"""The origin of a run: its code and its host."""

from __future__ import annotations

from dataclasses import dataclass

from gpugate.units import stored_unless

SHORT_COMMIT = 12  # hexadecimal digits of a commit that a reader sees


@dataclass(frozen=True)
class Provenance:
    """The code that was measured and the host that measured it. None: the value does not exist or is not known.

    `repository` is an address without credentials, None for a folder. `changes` is a hash of what was not committed,
    except for the baselines; None where everything was. `host` is a hash of the host's identity. `files` are those of
    the imported code, each after its hash in git, as in `d670460b4b4a kernels/rows.py`.
    """

    repository: str | None = None
    commit: str | None = None
    changes: str | None = None
    branch: str | None = None
    ci_url: str | None = None
    host: str | None = None
    gpu_uuid: str | None = None
    container: str | None = None  # digest of the image
    files: tuple[str, ...] | None = stored_unless(None)
