"""The lines of a journal: one JSON object each, with a checksum that covers the lines before it too.

    {"event": "validation", "seq": 7, "time": 1760000000000, ..., "sum": "0123456789abcdef"}

`sum` is the first 16 hexadecimal digits of SHA-256(the sum of the line before, then this line up to `, "sum"`). So a
changed, missing, repeated or swapped line is detected. It protects against accidents only: anyone who can write the
file can recompute it. Journals of earlier versions have no sums; the first line with a sum covers those before it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

Record = dict[str, Any]

KEPT = ("event", "seq", "time", "sum")
"""Fields of each record that are set by the journal."""
DIGITS = 16
_BEGIN, _END = b', "sum": "', b'"}\n'
_TAIL = len(_BEGIN) + DIGITS + len(_END)


@dataclass(frozen=True, slots=True)
class Position:
    """A position after complete lines: their number, their bytes, and the sum of the last."""

    number: int = 0
    offset: int = 0
    sum: str = ""
    summed: bool = False
    """Whether the last line has a sum; then all following lines must have one."""


def encode_record(record: Mapping[str, Any], before: Position, default: Any = None) -> tuple[bytes, Record, Position]:
    """A record's line, the record as it will be read, and the place after it. ValueError or TypeError if not JSON."""
    text = json.dumps(record, default=default, allow_nan=False, ensure_ascii=False)
    # a lone surrogate (e.g. of a file name that is not UTF-8) is kept as JSON's escape
    content = text.encode("utf-8", "backslashreplace")[:-1]
    checksum = _sum(before, content)
    line = content + _BEGIN + checksum.encode() + _END
    parsed: Record = json.loads(text)
    return line, parsed, Position(before.number + 1, before.offset + len(line), checksum, True)


def decode(line: bytes, before: Position) -> tuple[Record, Position]:
    """The record of a complete line, and the place after it; ValueError describes any error."""
    if not line.endswith(b"\n"):
        raise ValueError("it is incomplete")
    tail = line[-_TAIL:]
    has_sum = tail.startswith(_BEGIN) and tail.endswith(_END)
    content = line[: -_TAIL if has_sum else -2]
    try:
        record = json.loads(line, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(record, dict) or not {"event", "seq", "time"} <= record.keys():
        raise ValueError("not a record with event, seq and time")
    if type(record["seq"]) is not int or record["seq"] != before.number:
        raise ValueError(f"its seq is {str(record['seq'])[:40]}, and should be {before.number}")
    if not isinstance(record["event"], str) or type(record["time"]) is not int:
        raise ValueError("its event should be a word, its time a whole number")
    checksum = _sum(before, content)
    if has_sum and tail[len(_BEGIN) : -len(_END)] != checksum.encode():
        raise ValueError("its checksum is not that of its content and of the lines before it")
    if before.summed and not has_sum:
        raise ValueError("it has no checksum, and the line before it has one")
    record.pop("sum", None)
    return record, Position(before.number + 1, before.offset + len(line), checksum, has_sum)


def how_to_repair(name: str, intact: int) -> str:
    """What to do about the damaged journal of a search whose first `intact` lines can be read."""
    if not intact:
        return "; there is no intact line before it to continue from: start a new search"
    before = "line 1 is" if intact == 1 else f"lines 1 to {intact} are"
    return f"; {before} intact: orchestrator resume {name} --cut-damaged continues from there"


def _sum(before: Position, content: bytes) -> str:
    return hashlib.sha256(before.sum.encode() + content).hexdigest()[:DIGITS]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")
