"""One exception root; each subclass says what is wrong, where, and what to do."""


class LeydenError(Exception):
    """Root of all errors that Leyden raises on purpose."""


class SettingsError(LeydenError):
    """A setting is missing, unknown or contradicts another; the message names it and the remedy."""


class DecodeError(LeydenError):
    """Bytes that are not a record of the event contract; the message says why."""


class TopicError(LeydenError):
    """A topic differs from what the deployment needs; the message names the topic and the property."""


class ObjectStoreError(LeydenError):
    """The object store refused, or an object is missing or not what its digest says."""


class ObjectExistsError(ObjectStoreError):
    """A conditional create lost: the object is already there."""
