"""gpugate: does a GPU optimization still pay?"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpugate.session.callables import compare_callables as compare_callables

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports `compare_callables`, and torch with it, on first use."""
    if name != "compare_callables":
        raise AttributeError(f"module 'gpugate' has no attribute {name!r}")
    from gpugate.session.callables import compare_callables

    return compare_callables
