"""An admin's looks at the coordinator: what it is shown must fit what clients have been told."""

import re
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from dualwrite.broker.metrics import Metrics
from dualwrite.broker.transactions.state import WIRE_NAMES
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.describe_transactions import DescribeTransactionsRequest
from dualwrite.wire.messages.list_transactions import ListTransactionsRequest
from tests.simulation.requests import RETRIABLE
from tests.simulation.world import Send, Violation, World

STATES = sorted(WIRE_NAMES.values())

# RE2's syntax, and what Python calls the same; None for what must be refused.
PATTERNS: tuple[tuple[str, str | None], ...] = (
    ("dual-.*", "dual-.*"),
    ("(dual|plain)-[0-9]+", "(dual|plain)-[0-9]+"),
    ("(?:du|pla)[^0-9]*?-\\d{1,2}", "(?:du|pla)[^0-9]*?-[0-9]{1,2}"),
    ("(?P<kind>\\w+)-[[:digit:]]", "[A-Za-z0-9_]+-[0-9]"),
    ("(?<kind>[[:^digit:]]+)0?", "[^0-9]+0?"),
    ("(?i)DUAL-[A-Z0]|(?i:)?", None),
    ("(?i)DU[A-F]L-\\x30", "(?i:du[a-f]l)-0"),
    ("^\\Adual-\\x{31}\\z$", "dual-1"),
    ("\\Qdual-\\E\\D|\\Qplain-0", "plain-0"),
    ("d{1}u{1,}al\\-(0{0,2}|1)", "dual-(0{0,2}|1)"),
    ("[\\w-]{4,}[^\\s\\S]?", "[A-Za-z0-9_-]{4,}"),
    ("dual{-0", "dual[{]-0"),
    ("|copy", "|copy"),
    ("dual-0$.", "(?!)"),
    ("\\t\\.", "\t[.]"),
    *(
        (refused, None)
        for refused in (
            "dual)", "(dual", "*", "dual**", "a{1001}", "a{2,1}", "[z-a]", "[[:nobody:]]", "\\b", "\\",
            "\\x{g}", "\\xzz", "\\x{110000}", "(?P<1>a)", "(?=a)", "[a", "(" * 101 + ")" * 101,
            "((a{1000}){1000})",
        )
    ),
)  # fmt: skip


def list_ids(world: World, names: set[str]) -> Any:
    """All ids, or those that one filter lets through."""
    random = world.random
    served = set(world.answered)
    pattern, equivalent = random.choice([(None, None), *PATTERNS])
    match random.randrange(4):
        case 0:
            request = ListTransactionsRequest(transactional_id_pattern=pattern)
        case 1:
            request = ListTransactionsRequest(state_filters=[random.choice(STATES), "Nonsense"])
        case 2:
            request = ListTransactionsRequest(duration_filter=random.choice([0, 100, 10**9]))
        case _:
            wanted = [pair[0] for _, _, pair in world.instances[-2:]]
            request = ListTransactionsRequest(producer_id_filters=wanted)
    reply = yield Send(ApiKey.LIST_TRANSACTIONS, 2, request)
    if reply is None or reply.error_code in RETRIABLE:
        return
    found = {state.transactional_id for state in reply.transaction_states}
    if found - names:
        raise Violation(f"nobody has made {found - names}")
    for state in reply.transaction_states:
        if request.state_filters and state.transaction_state not in request.state_filters:
            raise Violation(f"{state} is not {request.state_filters}")
        if request.producer_id_filters and state.producer_id not in request.producer_id_filters:
            raise Violation(f"{state} is not of {request.producer_id_filters}")
    if request.state_filters and reply.unknown_state_filters != ["Nonsense"]:
        raise Violation(f"unknown states {reply.unknown_state_filters}")
    if request.transactional_id_pattern is not None:
        _check_pattern(reply, found, served, request.transactional_id_pattern, equivalent)


def _check_pattern(
    reply: Any, found: set[str], served: set[str], pattern: str, equivalent: str | None
) -> None:
    expected = ErrorCode.NONE if equivalent is not None else ErrorCode.INVALID_REGULAR_EXPRESSION
    if reply.error_code != expected:
        raise Violation(f"pattern {pattern} is told {reply.error_code}")
    if equivalent is None:
        return
    for name in found | served:
        if (re.fullmatch(equivalent, name) is not None) != (name in found):
            raise Violation(f"pattern {pattern} lists {found} of {served}")


def describe(world: World) -> Any:
    """An id that has been answered is there, with a pair that was given to somebody."""
    served = sorted(world.answered)
    asked = [*served, "nobody"]
    reply = yield Send(
        ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(transactional_ids=asked)
    )
    if reply is None:
        return
    for state in reply.transaction_states:
        if state.error_code in RETRIABLE:
            continue
        is_there = state.transactional_id != "nobody"
        code = ErrorCode.NONE if is_there else ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        if state.error_code != code or (is_there and state.transaction_state not in STATES):
            raise Violation(f"an admin is shown {state}")


def scrape(world: World) -> dict[str, float]:
    """The page for Prometheus, as far as it is about transactions; its figures fit the list."""
    assert world.node is not None
    coordinator = world.node.transactions
    page = Metrics().render(world.node, 0, world.clock).decode()
    figures = {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if "transaction" in sample.name
    }
    listed = coordinator.list_transactions(now=world.clock).transactions
    ongoing = sum(state.state.wire_name == "Ongoing" for state in listed)
    counted = sum(figures[f"dualwrite_open_transactions{kind}"] for kind in ("true", "false"))
    if figures["dualwrite_active_transactional_ids"] != len(listed) or counted != ongoing:
        raise Violation(f"{figures} while {ongoing} of {len(listed)} ids are ongoing")
    if (figures["dualwrite_active_transaction_open_time_max_seconds"] > 0) > (ongoing > 0):
        raise Violation(f"{figures} while nothing is open")
    return figures
