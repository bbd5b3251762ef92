"""The settings of TLS and SASL as Faust takes them: the same connection that librdkafka makes."""

import ssl

import faust

from ..infra.errors import SettingsError
from ..infra.settings import KafkaSettings

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def faust_credentials(kafka: KafkaSettings) -> faust.SSLCredentials | faust.SASLCredentials | None:
    """None for PLAINTEXT. Raises SettingsError where a setting is missing or Faust's client lacks what it names."""
    protocol = kafka.security_protocol
    if protocol not in _PROTOCOLS:
        raise SettingsError(f"kafka.security_protocol is {protocol!r}: one of {', '.join(_PROTOCOLS)}")
    if protocol == "PLAINTEXT":
        return None
    if protocol == "SSL":
        return faust.SSLCredentials(_context(kafka))
    if kafka.sasl_mechanism not in _MECHANISMS:
        raise SettingsError(
            f"kafka.sasl_mechanism is {kafka.sasl_mechanism!r}: with {protocol} assemble and group need one of "
            + ", ".join(_MECHANISMS)
        )
    for name in ("sasl_username", "sasl_password"):
        if getattr(kafka, name) is None:
            raise SettingsError(f"kafka.{name} is missing: {protocol} needs it")
    assert kafka.sasl_password is not None
    return faust.SASLCredentials(
        username=kafka.sasl_username,
        password=kafka.sasl_password.get_secret_value(),
        mechanism=kafka.sasl_mechanism,
        ssl_context=_context(kafka) if protocol == "SASL_SSL" else None,
    )


def _context(kafka: KafkaSettings) -> ssl.SSLContext:
    """Checks certificate and host name of the brokers, as librdkafka does by default."""
    try:
        context = ssl.create_default_context(cafile=kafka.ssl_ca)
    except OSError as error:
        raise SettingsError(f"kafka.ssl_ca, {kafka.ssl_ca}, is no CA bundle: {error}") from error
    if kafka.ssl_certificate is None:
        if kafka.ssl_key is not None:
            raise SettingsError("kafka.ssl_certificate is missing: kafka.ssl_key is the key of one")
        return context
    try:
        # A key with a passphrase is refused; without the argument OpenSSL would ask for it at the terminal.
        context.load_cert_chain(kafka.ssl_certificate, kafka.ssl_key, password="")
    except OSError as error:
        pair = f"kafka.ssl_certificate, {kafka.ssl_certificate}, and kafka.ssl_key, {kafka.ssl_key}"
        raise SettingsError(f"{pair}, do not make a pair: {error}") from error
    return context
