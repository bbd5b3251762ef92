"""One set of TLS and SASL settings reaches both Kafka clients, or is refused at start with the setting's name."""

import ssl
import subprocess
from pathlib import Path
from typing import Any

import faust
import pytest
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth
from leyden.infra.errors import SettingsError
from leyden.infra.kafka import client_config
from leyden.infra.settings import KafkaSettings
from leyden.stream.credentials import faust_credentials
from leyden.stream.settings import StreamSettings
from leyden.stream.worker import StageSpec, make_app
from pydantic import SecretStr

LOGIN: dict[str, Any] = {"sasl_username": "u", "sasl_password": SecretStr("p"), "sasl_mechanism": "SCRAM-SHA-512"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=broker", "-days", "2"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


def aiokafka(kafka: KafkaSettings) -> dict[str, Any]:
    """What Faust hands to its Kafka client, as the app of a worker is made."""
    settings = StreamSettings.load(kafka=kafka)
    app = make_app(StageSpec("assemble", None, "events", "trajectories", "rollouts"), settings, Path("unused"))
    return dict(credentials_to_aiokafka_auth(app.conf.broker_credentials, app.conf.ssl_context))


def test_without_tls_and_sasl_there_are_no_credentials() -> None:
    assert aiokafka(KafkaSettings()) == {"security_protocol": "PLAINTEXT"}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl_reaches_both_clients(mechanism: str) -> None:
    login: dict[str, Any] = LOGIN | {"sasl_mechanism": mechanism}
    kafka = KafkaSettings(security_protocol="SASL_PLAINTEXT", **login)
    assert aiokafka(kafka) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
        "ssl_context": None,
    }
    other = client_config(kafka)
    assert [other[f"sasl.{name}"] for name in ("mechanism", "username", "password")] == [mechanism, "u", "p"]


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_tls_trusts_the_ca_of_the_settings_and_checks_the_host_name(pair: tuple[Path, Path], protocol: str) -> None:
    certificate, key = pair
    tls: dict[str, Any] = {"ssl_ca": certificate, "ssl_certificate": certificate, "ssl_key": key}
    auth = aiokafka(KafkaSettings(security_protocol=protocol, **tls, **LOGIN))
    context = auth["ssl_context"]
    assert auth["security_protocol"] == protocol
    assert [ca["subject"] for ca in context.get_ca_certs()] == [((("commonName", "broker"),),)]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert auth.get("sasl_plain_username") == ("u" if protocol == "SASL_SSL" else None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"security_protocol": "TLS"}, r"kafka.security_protocol is 'TLS': one of PLAINTEXT, SSL"),
        ({"sasl_mechanism": None}, r"kafka.sasl_mechanism is None: with SASL_SSL assemble and group need one of PLAIN"),
        ({"sasl_mechanism": "GSSAPI"}, r"kafka.sasl_mechanism is 'GSSAPI'"),
        ({"sasl_password": None}, r"kafka.sasl_password is missing"),
        ({"ssl_ca": Path("/nowhere/ca.pem")}, r"kafka.ssl_ca, /nowhere/ca.pem, is no CA bundle: .*No such file"),
        ({"ssl_key": Path("key.pem")}, r"kafka.ssl_certificate is missing"),
        ({"ssl_certificate": Path("/nowhere/cert.pem")}, r"kafka.ssl_certificate, /nowhere/cert.pem"),
    ],
)
def test_what_faust_cannot_do_is_refused_by_the_name_of_the_setting(changes: dict[str, Any], message: str) -> None:
    kafka = KafkaSettings(security_protocol="SASL_SSL", **LOGIN).model_copy(update=changes)
    with pytest.raises(SettingsError, match=message):
        faust_credentials(kafka)


def test_a_key_with_a_passphrase_is_refused_instead_of_asking_the_terminal(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    certificate, key = pair
    locked = tmp_path / "locked.pem"
    command = ["openssl", "rsa", "-aes256", "-passout", "pass:secret", "-in", str(key), "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(SettingsError, match=r"kafka.ssl_key, .*locked.pem"):
        faust_credentials(KafkaSettings(security_protocol="SSL", ssl_certificate=certificate, ssl_key=locked))


def test_the_password_does_not_show_in_the_credentials() -> None:
    credentials = faust_credentials(KafkaSettings(security_protocol="SASL_PLAINTEXT", **LOGIN))
    assert isinstance(credentials, faust.SASLCredentials)
    assert "'p'" not in repr(credentials)
