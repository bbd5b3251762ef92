"""Errors of the outside: settings, topics, objects. The root is avro.errors.LeydenError."""

from ..avro.errors import DecodeError, LeydenError

__all__ = [
    "DecodeError",
    "LeydenError",
    "ObjectExistsError",
    "ObjectLostError",
    "ObjectStoreError",
    "SettingsError",
    "TopicError",
]


class SettingsError(LeydenError):
    """A setting is missing, unknown or contradicts another; the message names it and the remedy."""


class TopicError(LeydenError):
    """A topic differs from what the deployment needs; the message names the topic and the property."""


class ObjectStoreError(LeydenError):
    """The object store refused, or an object is missing or not what its digest says."""


class ObjectExistsError(ObjectStoreError):
    """A conditional create lost: the object is already there."""


class ObjectLostError(ObjectStoreError):
    """An object is not there, or not what its digest says: unlike with a store that is away, waiting does not help."""
