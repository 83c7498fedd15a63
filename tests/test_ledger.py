"""The ledger: what was written is what is read, and damage is named by its line."""

from __future__ import annotations

import pytest

from coterie.errors import RunError, UserError
from coterie.ledger import Ledger, Mark, check, events


@pytest.fixture
def written(tmp_path):
    """A ledger of ten lines, with what it was after the third, the seventh and the last."""
    path, marks = tmp_path / "ledger.jsonl", []
    with Ledger(path) as ledger:
        for number in range(1, 11):
            ledger.write("round", round=number, seconds=0.5, note="é")
            if number in (3, 7, 10):
                marks.append(ledger.commit())
    return path, marks


def test_marks_go_on_where_a_ledger_was_left(written) -> None:
    path, marks = written
    with Ledger(path) as ledger:
        assert ledger.commit() == marks[-1]
        assert ledger.cut(marks[1].bytes) == marks[2].bytes - marks[1].bytes
        assert ledger.commit() == marks[1]
        for number in range(8, 11):
            ledger.write("round", round=number, seconds=0.5, note="é")
        assert ledger.commit() == marks[2]
    check(path, marks)


def test_without_a_checkpoint_only_the_first_line_stays(written) -> None:
    path, _ = written
    with Ledger(path) as ledger:
        ledger.cut(None)
        ledger.write("resume", round=0)
    assert [event["event"] for event in events(path)] == ["round", "resume"]


def test_a_ledger_is_never_made_longer(written) -> None:
    path, marks = written
    path.write_bytes(path.read_bytes()[: marks[1].bytes])
    with Ledger(path) as ledger, pytest.raises(RunError, match="is damaged: it has"):
        ledger.cut(marks[2].bytes)
    assert path.stat().st_size == marks[1].bytes


@pytest.mark.parametrize(
    ("line", "damage", "said"),
    [
        (5, b"garbage", "in line 5: it is not an event"),
        (5, b'{"event": 5}', "in line 5: it is not an event"),
        (2, b'{"event":"round","round":2,"seconds":0.6,"note":"\\u00e9"}', "somewhere between line 1 and line 3: it is not what"),
        (9, b'{"event":"round","round":9,"seconds":0.5,"note":"e"}', "somewhere between line 8 and line 10: 5 bytes are missing"),
        (4, b"\xff\xfe\x00", "in line 4: it is not an event"),
        (6, b"[" * 100_000, "in line 6: it is not an event"),
    ],
)
def test_a_damaged_line_is_named(written, line, damage, said) -> None:
    path, marks = written
    lines = path.read_bytes().splitlines()
    lines[line - 1] = damage
    path.write_bytes(b"\n".join(lines) + b"\n")
    before = path.read_bytes()
    with pytest.raises(RunError, match=f"ledger.jsonl is damaged {said}"):
        check(path, marks)
    assert path.read_bytes() == before


def test_one_flipped_bit_anywhere_is_found(written) -> None:
    path, marks = written
    sound = path.read_bytes()
    for bit in range(8 * len(sound)):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(RunError, match=r"ledger\.jsonl is damaged (in line|somewhere between line|after line)"):
            check(path, marks)


def test_missing_lines_are_counted_from_the_end(written) -> None:
    path, marks = written
    path.write_bytes(path.read_bytes()[: marks[1].bytes])
    with pytest.raises(RunError, match=r"is damaged after line 7: \d+ bytes are missing"):
        check(path, marks)
    check(path, marks[:2])


def test_half_a_last_line_is_no_damage_but_one_in_the_middle_is(written) -> None:
    path, _ = written
    whole = path.read_bytes()
    for tail in (b'{"event":"rou', b'{"event":"rou\n', b"\0" * 4000, b"\xff\xff"):
        path.write_bytes(whole + tail)
        assert len(list(events(path))) == 10
    path.write_bytes(whole.replace(b'"round":4', b'"round":x'))
    with pytest.raises(RunError, match=r"ledger\.jsonl is damaged in line 4: it is not an event"):
        list(events(path))


def test_no_ledger_is_a_users_mistake(tmp_path) -> None:
    with pytest.raises(UserError, match="there is no ledger in"):
        next(events(tmp_path / "ledger.jsonl"))


def test_an_empty_ledger_is_not_what_it_was(tmp_path) -> None:
    (tmp_path / "ledger.jsonl").write_bytes(b"")
    with pytest.raises(RunError, match="is damaged after line 0: 5 bytes are missing"):
        check(tmp_path / "ledger.jsonl", [Mark(5, "0" * 64)])
