"""What the client knows of the cluster, and the conversations by which it learns.

Brokers, leaders and coordinators move; connections break. Everything here may be out of date, so
whoever asks the wrong node is told so, forgets what was known and asks again after a pause.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dualwrite.errors import ConfigurationError
from dualwrite.failures import KafkaTimeout, UnsupportedByBroker
from dualwrite.flows import verdicts
from dualwrite.flows.steps import (
    FOREVER,
    Action,
    Address,
    Closed,
    Connect,
    Event,
    Flow,
    Lost,
    Offer,
    Opened,
    Reply,
    Send,
    Step,
)
from dualwrite.flows.topics import Topic
from dualwrite.flows.verdicts import CodeTable, Verdict
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.message import schema_of
from dualwrite.wire.messages import request_class
from dualwrite.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from dualwrite.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

GROUP = 0
TRANSACTION = 1

TRANSACTION_VERSION = "transaction.version"

_HEAD_START_MS = 1_000
_CONCURRENT_BACKOFF_MS = 20
TOPIC_PROPAGATION_MS = 5_000
_METADATA_VERSION_MAX = 8  # later ones add topic ids, which names make unnecessary here

MakeRequest = Callable[[int], Any]
CodeOf = Callable[[Any], int]
Fail = Callable[[Verdict, int, str], Exception]


class ConnectionLost(Exception):
    """The connection broke before the answer came; flows ask again, callers never see it."""


class Waiter:
    """The token of a request whose answer one flow waits for."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome: Any = None

    def settle(self, outcome: Any) -> None:
        self.outcome = outcome


class Cluster:
    """Brokers, connections, leaders, coordinators and features, as far as they are known."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        timeout_ms: float,
        backoff_ms: float,
        backoff_ms_max: float,
        auto_create_topics: bool = True,
    ) -> None:
        self.now_ms: float = 0
        self.links: dict[int, Offer] = {}
        self.topics: dict[str, Topic] = {}
        self.cluster_id = ""
        self.is_stale = False
        """A leader was not where it should be; ask for metadata before the next attempt."""
        self.refreshed_ms: float = -FOREVER
        self.last_error: Exception | None = None
        self._last_refused: Address | None = None
        self._timeout_ms = timeout_ms
        self._backoff_ms = backoff_ms
        self._backoff_ms_max = backoff_ms_max
        self._auto_create_topics = auto_create_topics
        self._bootstrap = {-1 - index: address for index, address in enumerate(bootstrap)}
        self._brokers: dict[int, Address] = {}
        self._connecting: set[int] = set()
        self._not_before_ms: dict[int, float] = {}
        self._failures: dict[int, int] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._chosen_versions: dict[tuple[int, int, int, int], int] = {}
        self._features_epoch = -2
        self._finalized: dict[str, int] = {}

    # What happened.

    def handle(self, event: Event) -> None:
        """Take in one event; the answers to requests go to whoever holds the token."""
        match event:
            case Reply(token, response):
                token.settle(response)  # type: ignore[attr-defined]  # tokens are ours
            case Lost(token, error):
                self.last_error = error
                token.settle(error)  # type: ignore[attr-defined]
            case Opened(node, offer):
                self._connecting.discard(node)
                self._last_refused = None
                self._failures.pop(node, None)
                self.links[node] = offer
                self._chosen_versions.clear()
                if offer.features_epoch > self._features_epoch:
                    self._features_epoch = offer.features_epoch
                    self._finalized = dict(offer.finalized)
            case Closed(node, error):
                self._forget_link(node, error)

    def _forget_link(self, node: int, error: Exception) -> None:
        was_open = self.links.pop(node, None) is not None
        self._connecting.discard(node)
        self.last_error = error
        self.is_stale = True
        # A connection that worked may be made again at once: brokers close idle ones.
        if not was_open or isinstance(error, ValueError):
            self._last_refused = self._bootstrap.get(node) or self._brokers.get(node)
            self._failures[node] = self._failures.get(node, 0) + 1
            self._not_before_ms[node] = self.now_ms + self.backoff(self._failures[node])

    def forget_links(self, error: Exception) -> None:
        """Every connection is gone, those that were being opened too."""
        self.links.clear()
        self._connecting.clear()
        self.last_error = error
        self.is_stale = True

    def timeout(self, context: str) -> KafkaTimeout:
        """The error for a call that had no answer in time, with what is known of the reason."""
        if self._last_refused is not None:
            host, port = self._last_refused
            context = f"{context} from {host}:{port}"
        return KafkaTimeout(context, self.last_error)

    def backoff(self, attempt: int) -> float:
        return float(min(self._backoff_ms * 2 ** min(attempt - 1, 20), self._backoff_ms_max))

    # What is known.

    @property
    def nodes(self) -> list[int]:
        return sorted(self._brokers)

    @property
    def finalized(self) -> dict[str, int]:
        return self._finalized

    @property
    def transaction_version(self) -> int:
        """2 only if the cluster has finalized it; that a broker could speak it is not enough."""
        return 2 if self._finalized.get(TRANSACTION_VERSION, 0) >= 2 else 1

    def link_of(self, node: int) -> int:
        """The number under which the node is connected, which may be a bootstrap address."""
        if node in self.links:
            return node
        address = self._brokers.get(node)
        for bootstrap, known in self._bootstrap.items():
            if known == address and bootstrap in self.links:
                return bootstrap
        return node

    def version(self, link: int, api_key: int, limit: int, at_least: int = 0) -> int:
        """The newest version that both sides speak, not above `limit`."""
        asked = (link, api_key, limit, at_least)
        known = self._chosen_versions.get(asked)
        if known is not None and link in self.links:
            return known
        ours = schema_of(request_class(api_key)).versions
        low, high = self.links[link].versions.get(api_key, (0, -1))
        chosen = min(high, ours.last, limit)
        if chosen < max(low, ours.first, at_least):
            raise UnsupportedByBroker(
                f"the broker offers {ApiKey(api_key).name} v{low} to v{high},"
                f" v{max(ours.first, at_least)} to v{min(ours.last, limit)} is needed"
            )
        self._chosen_versions[asked] = chosen
        return chosen

    def leader(self, topic: str, partition: int) -> int | None:
        known = self.topics.get(topic)
        if known is None or partition >= len(known.leaders):
            return None
        leader = known.leaders[partition]
        return leader if leader in self._brokers else None

    def reach(self, node: int) -> Connect | None:
        """The action that opens a connection to a broker, or None while that must wait."""
        address = self._brokers.get(node)
        if address is None or node in self._connecting:
            return None
        if self._not_before_ms.get(node, 0) > self.now_ms:
            return None
        self._connecting.add(node)
        return Connect(node, address)

    # Conversations.

    def wait(self, actions: list[Action], until_ms: float = FOREVER) -> Flow[None]:
        """Do the actions and take in what happens; every flow waits here and nowhere else."""
        woken = yield Step(actions, until_ms)
        self.now_ms = woken.now_ms
        for event in woken.events:
            self.handle(event)

    def pause(self, milliseconds: float) -> Flow[None]:
        until_ms = self.now_ms + milliseconds
        while self.now_ms < until_ms:
            yield from self.wait([], until_ms)

    def attempt(self, flow: Flow[Any], until_ms: float) -> Flow[None]:
        """Run a flow, and give it up at the given time."""
        try:
            step = next(flow)
            while True:
                woken = yield Step(step.actions, min(step.until_ms, until_ms))
                if woken.now_ms >= until_ms and not woken.events:
                    self.now_ms = woken.now_ms
                    return
                step = flow.send(woken)
        except StopIteration:
            return
        finally:
            flow.close()

    def _pause_after_loss(self, attempt: int) -> Flow[None]:
        """The first loss may just be an idle connection that the broker had closed."""
        if attempt > 1:
            yield from self.pause(self.backoff(attempt - 1))

    def call(self, link: int, request: Any, version: int) -> Flow[Any]:
        """Ask over an open connection and wait for the answer."""
        waiter = Waiter()
        actions: list[Action] = [Send(link, request, version, waiter, self._timeout_ms)]
        while waiter.outcome is None:
            yield from self.wait(actions)
            actions = []
        if isinstance(waiter.outcome, Exception):
            raise ConnectionLost(str(waiter.outcome)) from waiter.outcome
        return waiter.outcome

    def connect(self, node: int) -> Flow[int]:
        """Wait for a connection to a broker; a login that is refused is raised at once."""
        while True:
            link = self.link_of(node)
            if link in self.links:
                return link
            if node not in self._brokers:
                raise ConnectionLost(f"broker {node} is not known")
            action = self.reach(node)
            if action is None and node not in self._connecting:
                yield from self.pause(self._not_before_ms.get(node, 0) - self.now_ms)
                continue
            actions: list[Action] = [] if action is None else [action]
            while node in self._connecting:
                yield from self.wait(actions)
                actions = []
            if node not in self.links:
                self._raise_refusal()
                raise ConnectionLost(f"no connection to broker {node}: {self.last_error}")

    def _raise_refusal(self) -> None:
        if isinstance(self.last_error, ConfigurationError):
            raise self.last_error

    def any_link(self) -> Flow[int]:
        """Wait for a connection to any broker, trying them all with a head start for the first."""
        attempt = 0
        while not self.links:
            known = {**self._brokers, **self._bootstrap}
            for node, address in known.items():
                if node in self._connecting:
                    continue
                self._connecting.add(node)
                actions: list[Action] = [Connect(node, address)]
                until_ms = self.now_ms + _HEAD_START_MS
                while node in self._connecting and not self.links and self.now_ms < until_ms:
                    yield from self.wait(actions, until_ms)
                    actions = []
                if self.links:
                    break
            while self._connecting and not self.links:
                yield from self.wait([])
            if not self.links:
                self._raise_refusal()
                attempt += 1
                yield from self.pause(self.backoff(attempt))
        return next(iter(self.links))

    def refresh(self, topics: Iterable[str]) -> Flow[MetadataResponse]:
        """Ask any broker for the brokers and for the leaders of these topics."""
        names = sorted(set(topics))
        attempt = 0
        while True:
            link = yield from self.any_link()
            version = self.version(link, ApiKey.METADATA, _METADATA_VERSION_MAX, at_least=1)
            request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
            if version >= 4:
                request.allow_auto_topic_creation = self._auto_create_topics
            try:
                response: MetadataResponse = yield from self.call(link, request, version)
            except ConnectionLost:
                attempt += 1
                yield from self._pause_after_loss(attempt)
                continue
            self._learn(response)
            return response

    def _learn(self, response: MetadataResponse) -> None:
        self.is_stale = False
        self.refreshed_ms = self.now_ms
        self.cluster_id = response.cluster_id or ""
        if response.brokers:
            self._brokers = {b.node_id: (b.host, b.port) for b in response.brokers}
        for found in response.topics:
            if found.name is None:
                continue
            if found.error_code and found.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
                self.topics.pop(found.name, None)
                continue
            if found.partitions:
                self.topics[found.name] = Topic.learned(found)

    def know_topic(self, topic: str, grace_ms: float = 0) -> Flow[None]:
        """Wait until the partitions of a topic are known; a new topic may take a while to appear."""
        give_up_ms = self.now_ms + grace_ms
        attempt = 0
        while topic not in self.topics:
            response = yield from self.refresh([topic])
            found = [t.error_code for t in response.topics if t.name == topic]
            code = found[0] if found else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if topic in self.topics:
                return
            if code and code not in verdicts.METADATA_RETRIED:
                raise verdicts.plain_failure(code, f"topic {topic!r}")
            if self.now_ms >= give_up_ms:
                missing = code or int(ErrorCode.LEADER_NOT_AVAILABLE)
                raise verdicts.plain_failure(missing, f"topic {topic!r}")
            attempt += 1
            yield from self.pause(self.backoff(attempt))

    def coordinator(self, kind: int, key: str) -> Flow[int]:
        """The broker that coordinates a group or a transactional id, connected."""
        attempt = 0
        while True:
            if (kind, key) in self._coordinators:
                return (yield from self.connect(self._coordinators[kind, key]))
            link = yield from self.any_link()
            version = self.version(link, ApiKey.FIND_COORDINATOR, 6, at_least=1)
            try:
                code = yield from self._find(link, version, kind, key)
            except ConnectionLost:
                attempt += 1
                yield from self._pause_after_loss(attempt)
                continue
            judgement = verdicts.verdict(verdicts.FIND_COORDINATOR, code)
            if judgement is Verdict.RETRY:
                attempt += 1
                yield from self.pause(self.backoff(attempt))
            elif judgement is not Verdict.DONE:
                raise verdicts.failure(judgement, code, f"finding the coordinator of {key!r}")

    def _find(self, link: int, version: int, kind: int, key: str) -> Flow[int]:
        if version >= 4:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        else:
            request = FindCoordinatorRequest(key=key, key_type=kind)
        response: FindCoordinatorResponse = yield from self.call(link, request, version)
        found: Any = response
        if version >= 4:
            if len(response.coordinators) != 1:
                raise ConnectionLost("FindCoordinator was answered for other keys")
            found = response.coordinators[0]
        if not found.error_code:
            self._brokers[found.node_id] = (found.host, found.port)
            self._coordinators[kind, key] = found.node_id
        return int(found.error_code)

    def known_coordinator(self, kind: int, key: str) -> int:
        return self._coordinators.get((kind, key), -1)

    def forget_coordinator(self, kind: int, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    def ask_coordinator(
        self,
        kind: int,
        key: str,
        api_key: int,
        make: MakeRequest,
        table: CodeTable,
        *,
        limit: int,
        at_least: int = 0,
        code_of: CodeOf = lambda response: int(response.error_code),
        fail: Fail = verdicts.failure,
        context: str,
    ) -> Flow[Any]:
        """Ask a coordinator, wherever it moves, until it has done it or refuses for good."""
        attempt = 0
        while True:
            try:
                link = yield from self.coordinator(kind, key)
                version = self.version(link, api_key, limit, at_least)
                response = yield from self.call(link, make(version), version)
            except ConnectionLost:
                self.forget_coordinator(kind, key)
                attempt += 1
                yield from self._pause_after_loss(attempt)
                continue
            code = code_of(response)
            judgement = verdicts.verdict(table, code)
            if judgement is Verdict.DONE:
                return response
            if judgement not in (Verdict.RETRY, Verdict.MOVED):
                raise fail(judgement, code, context)
            if judgement is Verdict.MOVED:
                self.forget_coordinator(kind, key)
            attempt += 1
            is_short = code == ErrorCode.CONCURRENT_TRANSACTIONS
            yield from self.pause(_CONCURRENT_BACKOFF_MS if is_short else self.backoff(attempt))
