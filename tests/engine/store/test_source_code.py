"""The code that a workload's hash is of: an edit of its work changes it, and nothing else does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpugate.catalogue import catalogue
from gpugate.store import baseline
from gpugate.store.source_code import Code, collect_code
from gpugate.store.source_hash import roots, source_hash
from gpugate.workload import Workload

ROOT = Path(__file__).parents[3]
# Workloads whose source changed after their records: their references have PyTorch's defaults since then, or frames
# are compared with the reference's composites, or they compile by parts/compiled.py, or have a side in Triton. They
# stand here until they are recorded again.
RECORDED_EARLIER = {
    *("driving", "driving-batch", "driving-workers", "resnet18-training"),
    *("resnet50-inference", "resnet50-inference-batch1", "two-layer-net"),
    *("video/composite", "video/decode", "video/decode-hevc", "video/encode", "video/end-to-end", "video/segment"),
    "video/preprocess",
}
FILES = {
    "__init__.py": "",
    "sides.py": '''"""Both sides."""
import json
import numpy as np
from typing import TYPE_CHECKING

from package.sizes import SIZE
from . import kernels

if TYPE_CHECKING:
    from collections.abc import Callable


def baseline(context):
    """The reference."""
    return np.ones(SIZE)  # all of it


def fast(context: Callable) -> None:
    import math
    from package import late

    return kernels.run(math.pi, late.DELAY)


PROMISED = 2.0
WORKLOADS = (("net", baseline, fast, PROMISED),)
''',
    "sizes.py": "FACTOR = 2\nSIZE = 4 * FACTOR\nOTHER = 3\n",
    "kernels.py": "def run(x, y):\n    return helper(x)\n\n\ndef helper(x):\n    return x\n\n\ndef unused(x): ...\n",
    "late.py": "from package.units import *\nDELAY = SECOND\n",
    "units.py": "SECOND = 1\n",
}
Edit = Callable[[Path], object]


def written(folder: Path) -> Path:
    package = folder / "package"
    package.mkdir()
    for name, text in FILES.items():
        (package / name).write_text(text)
    return package


def code(package: Path) -> Code:
    return collect_code(("package.sides", name, package / "sides.py") for name in ("baseline", "fast"))


def put(name: str, old: str, new: str) -> Edit:
    def edit(package: Path) -> None:
        text = (package / name).read_text()
        assert old in text
        (package / name).write_text(text.replace(old, new))

    return edit


def move_helper(package: Path) -> None:
    text = (package / "kernels.py").read_text()
    helper = "def helper(x):\n    return x\n"
    (package / "kernels.py").write_text("from package.moved import helper\n\n" + text.replace(helper, ""))
    (package / "moved.py").write_text(helper)


def rename_kernels(package: Path) -> None:
    (package / "kernels.py").rename(package / "fused.py")
    put("sides.py", "from . import kernels", "from package import fused as kernels")(package)


NO_WORK = {
    "comment": put("sides.py", "  # all of it", "  # every one of it"),
    "docstring": put("sides.py", '"""The reference."""', '"""The side that it is compared with."""'),
    "docstring of the module": put("sides.py", '"""Both sides."""', ""),
    "blank lines": put("kernels.py", "\n\n\ndef helper", "\ndef helper"),
    "unused import": put("sides.py", "import json\n", "import csv\n"),
    "order of imports": put(
        "sides.py", "    import math\n    from package import late\n", "    from package import late\n    import math\n"
    ),
    "import for types": put("sides.py", "from collections.abc import Callable", "from typing import Callable"),
    "promise": put("sides.py", "PROMISED = 2.0", "PROMISED = 3.0"),
    "function that is not used": put("kernels.py", "def unused(x): ...", "def unused(y): ..."),
    "constant that is not used": put("sizes.py", "OTHER = 3", "OTHER = 4"),
    "function that moved": move_helper,
    "module that was renamed": rename_kernels,
}
WORK = {
    "line of a side": put("sides.py", "np.ones(SIZE)", "np.zeros(SIZE)"),
    "constant behind a constant": put("sizes.py", "FACTOR = 2", "FACTOR = 3"),
    "function that a function calls": put("kernels.py", "    return x\n", "    return 2 * x\n"),
    "what a late import brings": put("late.py", "DELAY = SECOND", "DELAY = 2 * SECOND"),
    "what an import of all names brings": put("units.py", "SECOND = 1", "SECOND = 1000"),
    "other library of the same name": put("sides.py", "import numpy as np", "import cupy as np"),
    "statement that runs at the import": put("kernels.py", "def unused(x): ...", "unused[0] = 1"),
    "function that a decorator registers": put("kernels.py", "def unused", "@register\ndef unused"),
}


@pytest.mark.parametrize("edit", NO_WORK.values(), ids=NO_WORK)
def test_what_is_no_work_changes_nothing(edit: Edit, tmp_path: Path) -> None:
    before = code(package := written(tmp_path))
    edit(package)
    assert code(package) == before


@pytest.mark.parametrize("edit", WORK.values(), ids=WORK)
def test_work_that_changed_is_other_code(edit: Edit, tmp_path: Path) -> None:
    before = code(package := written(tmp_path))
    edit(package)
    assert code(package) != before


def workloads() -> dict[str, Workload]:
    if not catalogue.cases():
        catalogue.register_module("workloads")
        catalogue.load()
    return {case.workload.name: case.workload for case in catalogue.cases()}


@pytest.mark.parametrize("machine", ["nvidia-h100-80gb-hbm3", "nvidia-h200"])
def test_every_record_is_of_the_source_as_it_is(machine: str) -> None:
    computed = {name: source_hash(workload) for name, workload in workloads().items()}
    files = baseline.load_all(ROOT / "baselines" / machine)
    recorded = {name: {entry.current.source_hash for entry in file.cases.values()} for name, file in files.items()}
    assert recorded
    assert {name for name, hashes in recorded.items() if hashes != {computed[name]}} <= RECORDED_EARLIER


def other_pythons() -> list[str]:
    """Interpreters of other versions that a contributor's machine has, by name or from pyenv."""
    versions = [f"3.{minor}" for minor in range(10, 15) if minor != sys.version_info.minor]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [next(map(str, pyenv.glob(f"{version}.*/bin/python")), None) for version in versions]
    return [path for path in found if path] or [
        path for version in versions if (path := shutil.which(f"python{version}"))
    ]


CODE_OF = """
import json, sys
from pathlib import Path
from gpugate.store.source_code import collect_code
for functions in json.load(sys.stdin):
    code = collect_code((module, name, Path(path)) for module, name, path in functions)
    print(json.dumps([sorted(code.statements), sorted(code.imported)]))
"""


def test_the_oldest_and_the_newest_version_of_python_find_the_same_code() -> None:
    others = other_pythons()
    if not others:
        pytest.skip("this machine has Python of one version: install another one from 3.10 on")
    functions = [[(module, name, str(path)) for module, name, path in roots(one)] for one in workloads().values()]
    codes = [collect_code((module, name, Path(path)) for module, name, path in each) for each in functions]
    expected = [[sorted(each.statements), sorted(each.imported)] for each in codes]
    given = {"input": json.dumps(functions), "cwd": ROOT, "env": {"PYTHONPATH": str(ROOT)}}
    for python in {others[0], others[-1]}:
        printed = subprocess.run([python, "-c", CODE_OF], **given, capture_output=True, text=True, check=True).stdout
        assert [json.loads(line) for line in printed.splitlines()] == expected
