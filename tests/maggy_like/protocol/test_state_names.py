"""Names of saved states: only the strict form passes, at every border."""

from __future__ import annotations

import posixpath

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maggy_like.protocol.messages import Checkpointed, decode_to_driver, encode
from maggy_like.protocol.state_names import SHARDED, WHOLE, StateName, check_owner, parse_name, state_url

NUMBERS = st.integers(1, 10**12)
NAMES = st.builds(StateName, NUMBERS, NUMBERS, NUMBERS, st.sampled_from([WHOLE, SHARDED]))
PARTS = st.sampled_from(
    [
        "00003",
        "3",
        "/",
        "//",
        "..",
        ".",
        "2",
        "-",
        "1",
        ".pkl",
        ".dcp",
        "\n",
        "\0",
        "\u0663",
        "file://",
        "s3:",
        "~",
        "%2e",
    ]
)
FOREIGN = [
    "", "00003", "00003/", "/00003/2-1.pkl", "../00003/2-1.pkl", "00003/../2-1.pkl", "00003/2-1.pkl/..",
    "00003//2-1.pkl", "00003/2-1.pkl\n", "00003/02-1.pkl", "3/2-1.pkl", "000003/2-1.pkl", "00003/2-0.pkl",
    "00003/2-1.pkl.part", "file:///tmp/00003/2-1.pkl", "memory://00003/2-1.pkl", "00003/2-1.PKL", "00003/2-1",
    "returned.pkl", ".run", "0000\u0663/2-1.pkl",
]  # fmt: skip


@given(NAMES)
def test_what_is_written_is_read_back(name: StateName) -> None:
    assert parse_name(str(name)) == name
    check_owner(str(name), name.trial, name.attempt)


@given(st.one_of(st.text(), st.lists(PARTS, max_size=12).map("".join)))
def test_what_is_read_has_that_one_name_and_stays_in_the_store(text: str) -> None:
    try:
        name = parse_name(text)
    except ValueError:
        return
    assert str(name) == text
    assert posixpath.normpath(f"/runs/store/{text}") == f"/runs/store/{text}"


@pytest.mark.parametrize("text", FOREIGN)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the name of a saved state must be like '00003/2-1\.pkl'"):
        parse_name(text)
    with pytest.raises(ValueError, match="the name of a saved state must be like"):
        state_url("file:///store", text)


@pytest.mark.parametrize("name", [*FOREIGN, "00004/2-1.pkl", "00003/1-1.pkl", "00003/3-1.dcp"])
def test_no_message_names_what_its_attempt_has_not_saved(name: str) -> None:
    """As a worker would tell of it that makes its frames itself."""
    honest = encode(Checkpointed(3, 2, 1, "00003/2-1.pkl"))
    frame = msgspec.msgpack.encode({**msgspec.msgpack.decode(honest), "name": name})
    with pytest.raises(
        msgspec.DecodeError, match=r"the name of a saved state must|must belong to attempt 2 of trial 3"
    ):
        decode_to_driver(frame)
    assert decode_to_driver(honest) == Checkpointed(3, 2, 1, "00003/2-1.pkl")
