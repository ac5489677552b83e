import asyncio
import itertools

import pytest

from shoal.node.web.stream import (
    MAX_CLIENTS,
    MAX_QUEUED,
    MAX_REMEMBERED,
    Stream,
    TooManyClientsError,
)


@pytest.fixture
def stream():
    numbers = itertools.count()
    return Stream("e", lambda: f"whole-{next(numbers)}")


def everything(stream, client):
    return [(m.kind, m.data) for m in iter(lambda: stream.next(client), None)]


def test_a_newcomer_gets_the_whole_state_then_changes(stream):
    stream.publish("change", "0")
    with stream.client("") as client:
        assert everything(stream, client) == [("state", "whole-0")]
        stream.publish("change", "1")
        assert everything(stream, client) == [("change", "1")]


def test_who_comes_back_gets_what_it_missed(stream):
    for number in range(5):
        stream.publish("change", str(number))
    with stream.client("e-3") as client:
        assert everything(stream, client) == [("change", "3"), ("change", "4")]
    with stream.client("e-5") as client:
        assert everything(stream, client) == []


@pytest.mark.parametrize(
    "last_id", ["", "e-0", "e-1", "e-999", "f-70", "x" * 10_000, "e-\u0667", "e-70 "]
)
def test_an_unknown_or_too_old_id_gets_the_whole_state(stream, last_id):
    for number in range(MAX_REMEMBERED + 6):
        stream.publish("change", str(number))
    with stream.client(last_id) as client:
        assert everything(stream, client) == [("state", "whole-0")]


def test_a_slow_client_costs_a_bounded_queue_and_gets_a_fresh_state(stream):
    with stream.client("") as slow, stream.client("") as quick:
        everything(stream, slow)
        everything(stream, quick)
        for number in range(1000):
            stream.publish("change", str(number))
            assert everything(stream, quick) == [("change", str(number))]
            assert len(slow.queue) <= MAX_QUEUED
        assert everything(stream, slow) == [("state", "whole-2")]


def test_ids_go_on_after_a_fresh_state(stream):
    stream.publish("change", "0")
    with stream.client("") as client:
        message = stream.next(client)
        assert message.id == "e-1"
        assert message.encode() == b"id: e-1\nevent: state\ndata: whole-0\n\n"


def test_the_number_of_clients_is_bounded_and_places_are_given_back(stream):
    places = [stream.client("") for _ in range(MAX_CLIENTS)]
    for place in places:
        place.__enter__()
    with pytest.raises(TooManyClientsError), stream.client(""):
        pass
    places[0].__exit__(None, None, None)
    with stream.client(""):
        assert stream.num_clients == MAX_CLIENTS


def test_waiting_ends_with_a_message_and_with_the_end(stream):
    async def body():
        with stream.client("") as client:
            everything(stream, client)
            waiting = asyncio.create_task(client.wait())
            await asyncio.sleep(0)
            assert not waiting.done()
            stream.publish("change", "1")
            await waiting
            everything(stream, client)
            waiting = asyncio.create_task(client.wait())
            await asyncio.sleep(0)
            stream.close()
            await waiting
            assert client.closed

    asyncio.run(body())


def test_a_closed_stream_takes_nobody(stream):
    stream.close()
    with pytest.raises(TooManyClientsError), stream.client(""):
        pass
