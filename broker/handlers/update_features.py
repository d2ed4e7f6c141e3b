"""UpdateFeatures (57), v0-2: levels are settings of this broker (`transaction.version`), not changed here.

Needs ALTER on the cluster. Asking for the level in force is granted, any other is refused.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.handlers.api_versions import finalized_features
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.UPDATE_FEATURES, versions=(0, 2), request=UpdateFeaturesRequest)
def update_features(node: "Node", call: "Call[UpdateFeaturesRequest]") -> UpdateFeaturesResponse:
    if not call.may(Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster"):
        return UpdateFeaturesResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message="not authorized"
        )
    levels = finalized_features(node)
    results = [_update(levels, wanted) for wanted in call.request.feature_updates]
    failed = next((result for result in results if result.error_code), None)
    if failed is not None and call.version >= 2:
        # KIP-1022: from v2 on one error stands for all.
        return UpdateFeaturesResponse(
            error_code=failed.error_code, error_message=failed.error_message
        )
    return UpdateFeaturesResponse(error_message=None, results=results if call.version < 2 else [])


def _update(levels: dict[str, int], wanted: FeatureUpdateKey) -> UpdatableFeatureResult:
    level = levels.get(wanted.feature)
    if level == wanted.max_version_level:
        return UpdatableFeatureResult(feature=wanted.feature, error_message=None)
    if level is None:
        reason = f"feature {wanted.feature} is unknown"
    else:
        reason = f"{wanted.feature} is {level} by this broker's settings"
    return UpdatableFeatureResult(
        feature=wanted.feature,
        error_code=ErrorCode.INVALID_UPDATE_VERSION,
        error_message=reason,
    )
