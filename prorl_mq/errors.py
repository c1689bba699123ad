"""Every fault that this package raises, in one tree. A refusal of a verb is a value, not an exception."""


class ProrlError(Exception):
    """Something went wrong; the message says what, to which thing, and what to do next."""

    retryable = False


class ConfigurationError(ProrlError):
    """The configuration is wrong; the message lists every fault that was found."""


class ServerUnfit(ProrlError):
    """The Redis server lacks something that the guarantees rest on."""


class RedisUnavailable(ProrlError):
    """Redis could not be reached for longer than the outage limit."""

    retryable = True


class Unconfirmed(RedisUnavailable):
    """The replicas have not confirmed in time what the primary has done: it may outlive a fail-over, or not."""

    retry_after_ms = 2000


class Conflict(ProrlError):
    """An id is in use with another body."""


class UnknownDataSource(ProrlError):
    """No worker has announced a handler for this data source."""


class NoWorkersYet(UnknownDataSource):
    """No worker has announced anything so far: the service is being started."""

    retryable = True
    retry_after_ms = 2000


class InvalidTask(ProrlError):
    """A task does not fit the schema of its data source."""


class InvalidBatch(ProrlError):
    """A batch asks for what cannot be carried out."""


class AddressRefused(ProrlError):
    """A tenant may not add a backend at this address."""


class InvalidCursor(ProrlError):
    """A cursor is no place in a result stream."""


class NotFound(ProrlError):
    """There is no such thing, or it belongs to another tenant."""


class RunMoved(ProrlError):
    """A run is in another cell, which `cell` names."""

    def __init__(self, message: str, *, cell: str) -> None:
        super().__init__(message)
        self.cell = cell


class RunArriving(ProrlError):
    """A run is on its way into this cell."""

    retryable = True
    retry_after_ms = 1000


class NotTrainable(ProrlError):
    """A sample has no reward or no tokens, and must not reach a trainer as if it had."""


class PayloadUnavailable(ProrlError):
    """A payload that a record names cannot be read here, and has not appeared in time."""

    retryable = True
    cause = "node"


class PayloadTooLarge(ProrlError):
    """A payload is too large for Redis, and there is no file system for it."""

    cause = "node"


class PayloadUnwritten(PayloadTooLarge):
    """A payload is too large for Redis, and its file system takes no file now."""

    retryable = True


class OverQuota(ProrlError):
    """Redis has no room for new work now; `retry_after_ms` says when to try again."""

    retryable = True

    def __init__(self, message: str, *, retry_after_ms: int = 1000) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class ServiceError(ProrlError):
    """The service answered a client's request with an error; `status` is the HTTP status, 0 where there was none."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
