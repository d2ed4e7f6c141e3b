"""Every offered version of every API gets an answer that its own schema can read."""

import pytest

from dualwrite.broker import Broker
from dualwrite.broker.handlers import served_apis
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.messages import request_class
from dualwrite.wire.messages.api_versions import ApiVersionsRequest
from tests.broker.raw_client import RawClient

CASES = [(key, v) for key, api in served_apis().items() for v in range(api.first, api.last + 1)]


@pytest.fixture(scope="module")
def broker():
    with Broker() as running:
        yield running


@pytest.mark.parametrize(("key", "version"), CASES, ids=lambda n: str(int(n)))
def test_an_empty_request_of_every_version_is_answered(broker, key, version):
    with RawClient(broker.bootstrap_servers) as client:
        request = request_class(key)()
        sent = client.send(request, version)
        if key == ApiKey.PRODUCE:  # its default is acks=0, which has no answer
            sent = client.send(ApiVersionsRequest(), 0)
            key, version = ApiKey.API_VERSIONS, 0

        received, _ = client.receive(key, version)

        assert received == sent


def test_api_versions_offers_what_is_served(broker):
    with RawClient(broker.bootstrap_servers) as client:
        offered = client.call(ApiVersionsRequest("raw", "1"), 4).api_keys

    served = served_apis()
    assert {o.api_key: o.max_version for o in offered} == {k: a.last for k, a in served.items()}
    low = {o.api_key: o.min_version for o in offered}
    assert low.pop(ApiKey.PRODUCE) == 0
    assert low == {k: a.first for k, a in served.items() if k != ApiKey.PRODUCE}
