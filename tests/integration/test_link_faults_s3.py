"""Bad servers and bad links between real nodes and a real S3 server: codes, blame, nothing lost.

Every fault is counted where it is injected. Nobody but the author of a damaged payload is ever
refused, and never for a store or a link that is down; all nodes end with the records' parameters.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from shoal.storage.s3 import S3Store
from tests.support import answer_faults
from tests.support.fault_swarm import LOOK_S, VALIDATOR, FaultSwarm, lasts, s3_swarm
from tests.support.http_link import Act, HttpLink, Rule
from tests.support.processes import Event, Forge, wait_until
from tests.support.s3_bad_server import BadServer, Exchange, Seen, until
from tests.support.store_server import answers

# On a machine with other work.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STEADY, LEFT, RIGHT = "peer-0", "peer-1", "peer-2"
ALL = (VALIDATOR, STEADY, LEFT, RIGHT)
MAX_TRIES = 5
SHOWN_S = 25.0
"""A round is held so long at most until all has been seen."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One fault in its place."""

    swarm: FaultSwarm
    victim: str
    elsewhere: BadServer
    """A server on loopback that nobody should ever ask."""


def replaced(scene: Scene) -> Act:
    server = scene.swarm.store

    async def put(key: str, data: bytes) -> None:
        place = server.server.config(scene.victim)
        store = S3Store(place, server.keys[scene.victim].writer)
        await store.put(key, data, overwrite=True)
        store.close()

    return answer_faults.replaced(scene.swarm.identity(scene.victim), put)


@dataclass(frozen=True, kw_only=True)
class AnswerFault:
    """What happens to one peer's payload of one round on its way to its readers."""

    victim: str
    make: Callable[[Scene], Act]
    readers: tuple[str, ...] = ALL
    code: str = ""
    """What the readers refuse it with; empty: it is nobody's fault."""
    counts: bool = False
    """Whether it counts all the same."""
    at_least: int = 1
    """How often it happens to every reader."""
    is_late: bool = False
    """Whether the payload does not come while the round is open."""


# Those in one row share a round.
ANSWER_FAULTS: dict[str, tuple[AnswerFault, ...]] = {
    "a flipped bit, half a payload": (
        AnswerFault(victim=LEFT, make=lambda _: answer_faults.flip, code="E_BODY_HASH"),
        AnswerFault(victim=RIGHT, make=lambda _: answer_faults.truncate, code="E_LEN"),
    ),
    "a page with status 200, a redirect to loopback": (
        AnswerFault(victim=LEFT, make=lambda _: answer_faults.html_page, code="E_LEN"),
        AnswerFault(
            victim=RIGHT,
            make=lambda scene: answer_faults.redirect(f"{scene.elsewhere.url}/metadata"),
            code="E_HTTP_REDIRECT",
        ),
    ),
    "replaced after it was announced, a content encoding": (
        AnswerFault(victim=LEFT, make=replaced, code="E_EQUIVOCATION"),
        AnswerFault(victim=RIGHT, make=lambda _: answer_faults.encoded, code="E_HTTP_ENCODING"),
    ),
    "two versions for two readers, a reset at every 64 KiB": (
        AnswerFault(
            victim=LEFT,
            make=lambda scene: answer_faults.other_version(scene.swarm.identity(scene.victim)),
            readers=(STEADY,),
            code="E_EQUIVOCATION",
            counts=True,
        ),
        AnswerFault(
            victim=RIGHT,
            make=lambda _: answer_faults.reset_at_64_kib,
            counts=True,
            at_least=2,
        ),
    ),
    "a byte a second, 429 that asks for more than a round": (
        AnswerFault(victim=LEFT, make=lambda _: answer_faults.trickle, is_late=True),
        AnswerFault(
            victim=RIGHT, make=lambda _: answer_faults.busy(retry_after_s=12), is_late=True
        ),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Injected:
    """A fault and the rule of each reader."""

    fault: AnswerFault
    round_id: int
    rules: dict[str, Rule]

    def refusals(self) -> set[tuple[str, int, str, str]]:
        """What readers may say of it."""
        fault = self.fault
        codes = [fault.code] if fault.code else []
        return {(reader, self.round_id, fault.victim, c) for reader in self.rules for c in codes}

    def has_shown(self, swarm: FaultSwarm) -> bool:
        """Whether it happened to all its readers, and they have drawn their conclusions."""
        happened = all(rule.num_done >= self.fault.at_least for rule in self.rules.values())
        if not happened or not self.refusals() <= swarm.rejections():
            return False
        return all(
            self.round_id in _accepted(swarm, reader, author)
            for reader in self.rules
            for author in self.arriving()
            if author != swarm.nodes[reader].name
        )

    def arriving(self) -> list[str]:
        """Whose payload every reader of it takes all the same, while the round is held."""
        if self.fault.is_late:
            return [STEADY]
        return [self.fault.victim] if self.fault.counts and not self.fault.code else []


def _accepted(swarm: FaultSwarm, reader: str, author: str) -> dict[int, Event]:
    peer = swarm.identity(author).peer.text
    events = swarm.nodes[reader].events("payload-accepted")
    return {event["round_id"]: event for event in events if event["peer"] == peer}


def inject(swarm: FaultSwarm, fault: AnswerFault, scene: Scene, round_id: int) -> Injected:
    author = swarm.identity(fault.victim).peer.key.hex()
    end = f"/peers/{author}/payloads/{round_id:08d}"
    act = fault.make(scene)

    def fits(seen: Seen) -> bool:
        return seen.method == "GET" and seen.path.endswith(end)

    rules = {name: Rule(fits, act) for name in fault.readers if name != fault.victim}
    for name, rule in rules.items():
        swarm.store_links[name].rules.insert(0, rule)
    return Injected(fault=fault, round_id=round_id, rules=rules)


class HeldRecord:
    """Lets the validator write a round's record only when the test has seen enough."""

    def __init__(self, swarm: FaultSwarm, round_id: int) -> None:
        self.is_released = False
        end = f"/rounds/{round_id:08d}/record"
        rule = Rule(lambda seen: seen.method == "PUT" and seen.path.endswith(end), self._wait)
        swarm.store_links[VALIDATOR].rules.insert(0, rule)

    async def _wait(self, exchange: Exchange, link: HttpLink) -> None:
        await until(lambda: self.is_released)
        await link.pass_on(exchange)


def play(
    swarm: FaultSwarm, faults: tuple[AnswerFault, ...], elsewhere: BadServer
) -> list[Injected]:
    """Injects faults into a coming round, and into another one if a busy machine spoils that.

    Returns:
        All that was injected; the last ones are those that everybody has seen.
    """
    tried: list[Injected] = []
    for _ in range(MAX_TRIES):
        round_id = max(map(swarm.last_round, ALL)) + 2
        held = HeldRecord(swarm, round_id)
        now = [
            inject(swarm, f, Scene(swarm=swarm, victim=f.victim, elsewhere=elsewhere), round_id)
            for f in faults
        ]
        tried += now
        swarm.wait_for_round(round_id - 1)
        try:
            wait_until(partial(_have_shown, swarm, now), "all faults", SHOWN_S, poll_s=LOOK_S)
        except TimeoutError:
            continue
        finally:
            held.is_released = True
            swarm.wait_for_round(round_id)
        if _counts_as_expected(swarm, now, round_id):
            return tried
    pytest.fail(
        f"not within {MAX_TRIES} rounds: {[rule for one in now for rule in one.rules.items()]}"
    )


def _have_shown(swarm: FaultSwarm, now: list[Injected]) -> bool:
    return all(injected.has_shown(swarm) for injected in now)


def _counts_as_expected(swarm: FaultSwarm, now: list[Injected], round_id: int) -> bool:
    expected = dict.fromkeys(swarm.peers, True) | {o.fault.victim: o.fault.counts for o in now}
    found = {name: swarm.report(name, round_id)["counted"] for name in swarm.peers}
    for victim in (one.fault.victim for one in now if not one.fault.counts):
        assert not found[victim], f"{victim} counts in round {round_id}"
    return found == expected


def test_damaged_answers_cost_their_author_the_round_and_nobody_else_anything(
    forge: Forge, tmp_path: Path
) -> None:
    with s3_swarm(forge, tmp_path, target_peers=3, is_large=True) as swarm:
        elsewhere = BadServer(lambda exchange: exchange.answer(200, {}, b"secret"))
        swarm.background.enter(elsewhere)
        # One of them has a link that breaks at every 64 KiB from its very start on.
        breaks = Rule(answer_faults.is_long_read, answer_faults.reset_at_64_kib)
        swarm.store_links[LEFT].rules.append(breaks)
        for node in swarm.nodes.values():
            node.start()
        for name in swarm.peers:
            swarm.wait_until_counted(name, after=0)
        assert breaks.num_done > 14, "genesis is longer than 15 times 64 KiB"
        swarm.store_links[LEFT].rules.remove(breaks)
        tried: list[Injected] = []
        for faults in ANSWER_FAULTS.values():
            tried += play(swarm, faults, elsewhere)
            for injected in tried[-len(faults) :]:
                check_others_were_not_held(swarm, injected)
        for name in swarm.peers:
            swarm.wait_until_counted(name, after=swarm.last_round())
        swarm.finish()
        assert elsewhere.num_connections == 0, "a redirect was followed"
        allowed = set().union(*(injected.refusals() for injected in tried))
        assert swarm.rejections() <= allowed
        assert {injected.fault.code for injected in tried} >= {code for *_, code in allowed}


def check_others_were_not_held(swarm: FaultSwarm, injected: Injected) -> None:
    """A payload that does not come in time delays no other, and its author is not blamed."""
    if not injected.fault.is_late:
        return
    author = swarm.identity(injected.fault.victim).peer.key.hex()[:16]
    for reader, rule in injected.rules.items():
        assert swarm.warnings(reader, f"payload of {author}", rule.spans[0][0]), reader
        if reader != STEADY:
            other = _accepted(swarm, reader, STEADY)[injected.round_id]
            assert other["time_s"] < swarm.report(reader, injected.round_id)["time_s"]


@dataclass(frozen=True, kw_only=True)
class LinkFault:
    """Something that cuts nodes off for a while."""

    name: str
    begin: Callable[[FaultSwarm], None]
    end: Callable[[FaultSwarm], None]
    cut_off: tuple[str, ...]
    """Whose links see that nothing gets through."""
    stops_rounds: bool
    """No round closes meanwhile; else two do, without those who are cut off."""


def answer_all(swarm: FaultSwarm, names: tuple[str, ...], act: Act) -> None:
    """Whatever these nodes ask the store, they get this answer."""

    async def count_and_act(exchange: Exchange, link: HttpLink) -> None:
        link.num_cut += 1
        await act(exchange, link)

    for name in names:
        swarm.store_links[name].rules.insert(0, Rule(lambda _: True, count_and_act))


def answer_again(swarm: FaultSwarm) -> None:
    """The store itself answers all nodes again."""
    for link in swarm.store_links.values():
        link.rules.clear()


def kill_store(swarm: FaultSwarm) -> None:
    port, pid = swarm.store.port, swarm.background.run(swarm.store.kill())
    assert not swarm.background.run(answers(port))
    assert not Path(f"/proc/{pid}").exists()


LINK_FAULTS = (
    LinkFault(
        name="a peer is cut off: connections are reset",
        begin=lambda swarm: swarm.cut(RIGHT, hangs=False),
        end=lambda swarm: swarm.mend(RIGHT),
        cut_off=(RIGHT,),
        stops_rounds=False,
    ),
    LinkFault(
        name="a peer is cut off: nothing answers",
        begin=lambda swarm: swarm.cut(LEFT, hangs=True),
        end=lambda swarm: swarm.mend(LEFT),
        cut_off=(LEFT,),
        stops_rounds=False,
    ),
    LinkFault(
        name="a peer gets a page with status 200 whatever it asks",
        begin=lambda swarm: answer_all(swarm, (RIGHT,), answer_faults.html_page),
        end=answer_again,
        cut_off=(RIGHT,),
        stops_rounds=False,
    ),
    LinkFault(
        name="the store answers 429 to everybody",
        begin=lambda swarm: answer_all(swarm, ALL, answer_faults.busy()),
        end=answer_again,
        cut_off=ALL,
        stops_rounds=True,
    ),
    LinkFault(
        name="the validator is cut off",
        # Its own link to the store, and everybody's to its HTTP service.
        begin=lambda swarm: swarm.cut(VALIDATOR, *swarm.peers, hangs=True, kinds="validator"),
        end=lambda swarm: swarm.mend(*ALL),
        cut_off=(VALIDATOR,),
        stops_rounds=True,
    ),
    LinkFault(
        name="the store is cut off",
        begin=lambda swarm: swarm.cut(*ALL, hangs=False, kinds="store"),
        end=lambda swarm: swarm.mend(*ALL),
        cut_off=ALL,
        stops_rounds=True,
    ),
    LinkFault(
        name="the store is killed",
        begin=kill_store,
        end=lambda swarm: swarm.restart_store(),
        cut_off=(),
        stops_rounds=True,
    ),
)


def test_whoever_was_cut_off_goes_on_where_the_others_are(forge: Forge, tmp_path: Path) -> None:
    with s3_swarm(forge, tmp_path, target_peers=2, round_seconds=6.0) as swarm:
        for node in swarm.nodes.values():
            node.start()
        for name in swarm.peers:
            swarm.wait_until_counted(name, after=0)
        limits = swarm.validator.events("node-started")[0]["limits"]
        for fault in LINK_FAULTS:
            before = {name: swarm.store_links[name].num_cut for name in fault.cut_off}
            fault.begin(swarm)
            begin_s = time.monotonic()
            if fault.stops_rounds:
                assert_rounds_wait(swarm, max(limits.values()) * 1.2, fault.name)
                # Longer than any limit that follows from the length of a round.
                assert time.monotonic() - begin_s > max(limits.values())
            else:
                (victim,) = fault.cut_off
                missed = swarm.last_round(victim)
                others = [name for name in ALL if name != victim]
                swarm.wait_for_round(missed + 3, *others)
            for name in fault.cut_off:
                assert swarm.store_links[name].num_cut > before[name], f"{fault.name}: {name}"
            last = swarm.last_round()
            fault.end(swarm)
            for name in swarm.peers:
                swarm.wait_until_counted(name, after=last)
            if not fault.stops_rounds:
                # It may have been a round further than its log; all others had ended this one.
                assert swarm.report(victim, missed + 3)["replayed"]
                assert not swarm.report(victim, missed + 2)["counted"]
        swarm.finish()
        # A page in the place of an object has a code like every wrong object; only who got it says
        # so, and nobody else is any the worse for it.
        blamed = {(observer, code) for observer, _, _, code in swarm.rejections()}
        assert blamed <= {(RIGHT, "E_LEN")}, "somebody was blamed for a link"
        for name, node in swarm.nodes.items():
            codes = {event["code"] for event in node.events("record-rejected")}
            assert codes == ({"E_MAGIC"} if name == RIGHT else set()), name


def assert_rounds_wait(swarm: FaultSwarm, duration_s: float, what: str) -> None:
    # A record that was on its way may still arrive.
    last = swarm.last_round() + 1
    lasts(lambda: swarm.last_round() <= last, duration_s, f"{what}: a round has closed")
