"""Files that outlive a process are whole, named after facts, and never used where they are damaged."""

from pathlib import Path

import pytest

from workloads.parts.kept_files import keep, key_of, read_kept


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "engine.plan"
    assert read_kept(path) is None
    keep(path, b"first")
    keep(path, b"second")
    assert read_kept(path) == b"second"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("damage", [lambda stored: stored[:-1], lambda stored: b"\0" + stored[1:], lambda stored: b""])
def test_a_damaged_file_is_named_and_deleted(tmp_path: Path, damage) -> None:
    path = tmp_path / "engine.plan"
    keep(path, b"content")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(RuntimeWarning, match=r"engine\.plan is damaged: it was deleted and is made again"):
        assert read_kept(path) is None
    assert not path.exists()


def test_a_key_changes_with_each_fact() -> None:
    facts = [(b"ab", "c"), (b"a", "bc"), (b"ab", "d"), (b"ab", "c", None), ("ab", "c")]
    keys = {key_of(*one) for one in facts}
    assert len(keys) == len(facts)
    assert key_of(b"ab", "c") in keys
