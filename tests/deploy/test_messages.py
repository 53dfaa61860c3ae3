"""Messages as bytes, and back."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.deploy.messages import (
    FORMAT,
    Hello,
    parse_hello,
    parse_request,
    read_message,
    write_hello,
    write_message,
    write_request,
)
from fedtailor.executors.visit import Look, Visit
from fedtailor.storage.files import dump_flat

DATA = {
    "kind": "image",
    "shape": [1, 8, 8],
    "dtype": "uint8",
    "classes": 10,
    "labels": [],
    "vocabulary": 0,
}
HEADER = {
    "run": "r",
    "method": "m",
    "engine": "e",
    "attempt": 1,
    "since": 0,
    "covered": 0,
    "best": None,
    "client": 2,
    "experiment": {"method": "ditto"},
    "data": DATA,
}


class Down(NamedTuple):
    w: dict[str, Tensor]
    t: int


def make_down() -> Down:
    return Down({"b": torch.arange(3000.0), "a": torch.ones(2)}, 7)


def test_trees_come_back_in_their_own_order():
    down = make_down()
    message = read_message(write_message({"x": 1}, [down, down._replace(t=8)]))
    assert message.header["x"] == 1
    for i, t in ((0, 7), (1, 8)):
        again = message.decode_tree(i, Down)
        assert again.t == t and list(again.w) == ["b", "a"]
        assert all(torch.equal(again.w[name], down.w[name]) for name in down.w)


def test_a_tensor_that_two_visits_share_is_written_once():
    down = make_down()
    one = write_request({}, [Visit("local", 1, 1, down)])
    two = write_request({}, [Visit(Look.SCORE, 0, 0, down)] * 2)
    assert len(two) < 1.3 * len(one)
    message = read_message(two)
    first = message.decode_tree(0, Down)
    second = message.decode_tree(1, Down)
    assert all(torch.equal(first.w[name], second.w[name]) for name in down.w)


def test_headers_come_back_with_their_types():
    hello = Hello("r", "m", "e", {"method": "ditto"}, ["good", "bad"])
    assert parse_hello(read_message(write_hello(hello)).header) == hello
    request = read_message(
        write_request(HEADER, [Visit("local", 3, 1, make_down(), before=True)])
    )
    header = parse_request(request.header)
    assert header.visits == [Visit("local", 3, 1, None, before=True)]
    assert header.data.shape == (1, 8, 8) and header.best is None and header.client == 2


@pytest.mark.parametrize("missing", sorted(HEADER))
def test_a_header_without_a_field_is_refused_in_one_line(missing):
    header = {key: value for key, value in HEADER.items() if key != missing}
    with pytest.raises(UserError, match=f"the message is damaged .*{missing}"):
        parse_request({**header, "visits": []})


def test_a_message_of_another_format_is_refused():
    for layout in ({}, {"format": FORMAT + 1, "same": {}, "order": []}):
        with pytest.raises(UserError, match="of another version of fedtailor"):
            read_message(dump_flat({"about": layout}))


def test_the_bytes_are_those_of_format_3():
    """What a message is called on the wire: a change of this needs another FORMAT."""
    message = dump_flat(
        {"about": {"format": 3, "same": {}, "order": ["0/it/t"]}, "0/it/t": 7}
    )
    assert read_message(message).flat == {"0/it/t": 7}
    assert write_message({}, []) == dump_flat(
        {"about": {"format": 3, "same": {}, "order": []}}
    )
