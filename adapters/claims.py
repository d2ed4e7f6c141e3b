"""A claim whose answer was lost."""

from collections.abc import Callable

from dualwrite.store import Claim, StoreRow, StoreUnavailable


def claim_of(row: StoreRow) -> Claim:
    return Claim(
        state=row.state,
        fence=row.fence,
        seq=row.seq,
        state_fence=row.state_fence,
        cluster_id=row.cluster_id,
    )


def settled_claim(
    claim: Callable[[], Claim],
    row: Callable[[], StoreRow | None],
    expect: int | None,
    owner: str | None,
) -> Claim:
    """Make the claim; if the store doesn't answer, find out once whether it was made.

    A claim that was made unnoticed would leave a slot to an owner who lives and doesn't know of
    it, so that nobody would recover it. The row tells: its owner names this very instance.
    """
    try:
        return claim()
    except StoreUnavailable:
        if expect is not None and owner is not None:
            found = row()
            if found is not None and (found.owner, found.fence) == (owner, expect + 1):
                return claim_of(found)
        return claim()
