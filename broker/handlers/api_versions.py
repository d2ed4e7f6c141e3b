"""ApiVersions (18), v0-5.

Derived from the registry. An unknown version is answered with error 35 in the form of v0 and the
range of ApiVersions itself (KIP-511). v3 names features: `transaction.version` is what makes a client
use KIP-890's second version. Up to v3 a supported feature whose lowest version is 0 is left out
(KAFKA-17011). From v3 on the client names its software and version; names that metrics could not carry
are refused (KIP-511). v5 names the broker that the client means to talk to (KIP-1242); if it is another one,
REBOOTSTRAP_REQUIRED.
"""

import re
from typing import TYPE_CHECKING, Final

from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

SUPPORTED_FEATURES: Final = {
    "group.version": (0, 1),
    "metadata.version": (7, 25),
    "transaction.version": (0, 2),
}

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@handles(ApiKey.API_VERSIONS, versions=(0, 5), request=ApiVersionsRequest)
def api_versions(node: "Node", call: "Call[ApiVersionsRequest]") -> ApiVersionsResponse:
    request: ApiVersionsRequest | None = call.request
    if request is None:
        own = node.apis[ApiKey.API_VERSIONS]
        return ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[ApiVersion(api_key=own.key, min_version=own.first, max_version=own.last)],
        )
    if call.version >= 3 and not _names_its_software(request):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if _means_another_broker(node, request):
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    finalized = finalized_features(node)
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=api.key, min_version=api.offered_from, max_version=api.last)
            for api in node.apis.values()
        ],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
            for name, (lowest, highest) in SUPPORTED_FEATURES.items()
            if call.version > 3 or lowest > 0
        ],
        finalized_features_epoch=0,
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in finalized.items()
            if level > 0
        ],
    )


def finalized_features(node: "Node") -> dict[str, int]:
    """The features in force; a level of 0 means that the feature is off."""
    return {
        "group.version": 1 if ApiKey.CONSUMER_GROUP_HEARTBEAT in node.apis else 0,
        "metadata.version": SUPPORTED_FEATURES["metadata.version"][1],
        "transaction.version": node.settings["transaction.version"],
    }


def _names_its_software(request: ApiVersionsRequest) -> bool:
    named = request.client_software_name, request.client_software_version
    return all(_SOFTWARE.fullmatch(text) is not None for text in named)


def _means_another_broker(node: "Node", request: ApiVersionsRequest) -> bool:
    if request.cluster_id is not None and request.cluster_id != node.cluster.id:
        return True
    return request.node_id not in (-1, node.id)
