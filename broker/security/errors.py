"""Errors of the security layer, named by what the caller must do next."""


class SecurityConfigError(ValueError):
    """The settings, a users file or a certificate must be corrected before the broker can start."""


class AuthenticationFailed(Exception):
    """The connection did not prove who it is: answer with the failure and close it.

    `str(error)` is what the client is told: the same for an unknown user and a wrong password.
    `reason` is for the audit log; it holds neither passwords nor proofs nor nonces.
    """

    def __init__(self, mechanism: str, reason: str) -> None:
        super().__init__(f"authentication with {mechanism} failed")
        self.mechanism = mechanism
        self.reason = reason


class InvalidBinding(ValueError):
    """The access rule or filter that a client sent has no meaning: answer INVALID_REQUEST."""
