"""File names for what is kept of a test parameter: readable, safe on any disk, and never the same for two ids.

And the endings of what nsys makes of it: a report, what its importer could not read, and an export.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

REPORT, NOT_IMPORTED, EXPORT = ".nsys-rep", ".qdstrm", ".sqlite"
LONGEST = 120  # characters, which leaves room for a side and an ending below the 255 bytes of a file name
_PLAIN = re.compile(r"[a-z0-9][a-z0-9._/-]*")
_LOOKS_HASHED = re.compile(r"-[0-9a-f]{8}$")


def safe_name(text_id: str) -> str:
    """`two-layer-net+cuda-graph+cuda` for `two-layer-net/cuda-graph/cuda`.

    What else has to be changed makes the name end with a hash of the id, so that ids that differ have names that do.
    """
    plain = _PLAIN.fullmatch(text_id) and len(text_id) <= LONGEST and not _LOOKS_HASHED.search(text_id)
    if plain:
        return text_id.replace("/", "+")
    ascii_only = unicodedata.normalize("NFKD", text_id.lower()).encode("ascii", "ignore").decode()
    slug = re.sub(r"[^a-z0-9._+]+", "-", ascii_only.replace("+", "-").replace("/", "+")).lstrip(".-+") or "case"
    digest = hashlib.sha256(text_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{slug[: LONGEST - len(digest) - 1].rstrip('-')}-{digest}"
