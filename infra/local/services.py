"""Kafka, MinIO and vLLM as processes of this machine: files, flags, readiness."""

import base64
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException

from .. import kafka
from ..bf16 import native_bf16
from ..settings import KafkaSettings, ObjectSettings
from .cache import FetchError, Say
from .fetch import java, kafka_jars, minio_binary
from .processes import ProcessSpec

# 305 MB resident; a short-lived broker gains nothing from the second compiler, which takes a core for a minute.
JVM_FLAGS = ("-Xmx512m", "-Xms256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
_LOG4J = """\
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = INFO
"""
_KAFKA = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=1000
broker.session.timeout.ms=9000
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
log.segment.bytes=134217728
"""


PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
"""Environment in which threads that wait do not spin: engine and learner take turns on the same cores."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How vLLM is started. Defaults suit a small model on two cores."""

    model: Path
    served_name: str = "policy"
    dtype: str | None = None
    """None: bfloat16 where the machine has instructions for it, else float32."""
    max_model_len: int = 2048
    max_num_seqs: int = 64
    kv_cache_bytes: int = 512 << 20
    threads: int = 1
    """OMP threads."""
    reload_token: str = ""
    port: int | None = None
    extra: tuple[str, ...] = ()
    """More arguments for vLLM."""


def http_ready(url: str, timeout_s: float = 1.0) -> Callable[[], str | None]:
    """A probe: None once `url` answers 200, else what it said."""

    def probe() -> str | None:
        try:
            with urllib.request.urlopen(url, timeout=timeout_s) as response:
                return None if response.status == 200 else f"HTTP {response.status}"
        except urllib.error.HTTPError as error:
            with error:
                return f"HTTP {error.code} {error.read(300).decode(errors='replace')}".strip()
        except OSError as error:
            return str(getattr(error, "reason", error))

    return probe


def kafka_ready(bootstrap: str) -> Callable[[], str | None]:
    """A probe: None once the broker answers a metadata request."""
    host, _, port = bootstrap.rpartition(":")

    def probe() -> str | None:
        try:
            # Cheaper than a client, and without its complaints while the broker starts.
            socket.create_connection((host, int(port)), 1.0).close()
            kafka.admin(KafkaSettings(bootstrap=bootstrap)).list_topics(timeout=2.0)
        except OSError as error:
            return str(error)
        except KafkaException as error:
            return error.args[0].str()
        return None

    return probe


def kafka_process(data: Path, port: int, controller_port: int, say: Say) -> ProcessSpec:
    """A single-node KRaft broker with its data in `data`; formats it the first time. Raises FetchError."""
    data.mkdir(parents=True, exist_ok=True)
    properties, log4j = data / "server.properties", data / "log4j2.properties"
    properties.write_text(_KAFKA.format(port=port, controller=controller_port, data=data / "log"))
    log4j.write_text(_LOG4J)
    command = [
        *(str(java(say)), *JVM_FLAGS, f"-Dlog4j2.configurationFile={log4j}"),
        *("-cp", f"{kafka_jars(say)}/*"),
    ]
    if not (data / "log" / "meta.properties").exists():
        _format(command, properties)
    return ProcessSpec(
        "kafka",
        (*command, "kafka.Kafka", str(properties)),
        ready=kafka_ready(f"127.0.0.1:{port}"),
        url=f"127.0.0.1:{port}",
        is_service=True,
    )


def _format(command: list[str], properties: Path) -> None:
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # The tool reads an id that begins with a dash as an option.
    arguments = ["kafka.tools.StorageTool", "format", "-t", cluster.replace("-", "0"), "-c", str(properties)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise FetchError(f"Kafka's storage could not be formatted: {done.stderr[-2000:] or done.stdout[-2000:]}")


def minio_process(data: Path, port: int, objects: ObjectSettings, say: Say) -> ProcessSpec:
    """A single MinIO with its objects in `data`. Raises FetchError."""
    data.mkdir(parents=True, exist_ok=True)
    return ProcessSpec(
        "minio",
        (
            *(str(minio_binary(say)), "server", str(data), "--address", f"127.0.0.1:{port}"),
            # --no-compat: no MD5 of each object as its ETag, which nobody here reads: writes 2.5 times faster.
            *("--console-address", "127.0.0.1:0", "--quiet", "--no-compat"),
        ),
        env={
            "MINIO_ROOT_USER": objects.access_key,
            "MINIO_ROOT_PASSWORD": objects.secret_key.get_secret_value(),
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        },
        ready=http_ready(f"http://127.0.0.1:{port}/minio/health/ready"),
        url=f"http://127.0.0.1:{port}",
        is_service=True,
    )


def engine_process(engine: EngineSpec, port: int, cache: Path) -> ProcessSpec:
    """vLLM with Leyden's reload route and worker extension."""
    dtype = engine.dtype or ("bfloat16" if native_bf16() else "float32")
    return ProcessSpec(
        "engine",
        (
            *(sys.executable, "-m", "leyden.infra.local.engine", "--model", str(engine.model)),
            *("--served-model-name", engine.served_name, "--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", dtype, "--max-model-len", str(engine.max_model_len)),
            *("--max-num-seqs", str(engine.max_num_seqs), "--kv-cache-memory-bytes", str(engine.kv_cache_bytes)),
            # Compiling takes a minute and gains nothing at this size.
            "--enforce-eager",
            # With the CPU's default block of 128 no shorter prompt is ever found in the prefix cache.
            *("--block-size", "32", "--enable-prefix-caching"),
            # Behaviour logprobs are those of the distribution that was sampled from.
            *("--logprobs-mode", "processed_logprobs"),
            # Sampling defaults are the ones of the OpenAI API, which the gateway records, not the model folder's.
            *("--generation-config", "vllm"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *("--worker-extension-cls", "leyden.serving.vllm_plugin.worker.WorkerExtension"),
            *("--middleware", "leyden.serving.vllm_plugin.middleware.LeydenMiddleware"),
            *("--disable-uvicorn-access-log", *engine.extra),
        ),
        env={
            "OMP_NUM_THREADS": str(engine.threads),
            **PASSIVE,
            "LEYDEN_ENGINE__RELOAD_TOKEN": engine.reload_token,
            "VLLM_CACHE_ROOT": str(cache / "vllm"),
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        },
        ready=http_ready(f"http://127.0.0.1:{port}/health"),
        url=f"http://127.0.0.1:{port}",
        is_service=True,
    )
