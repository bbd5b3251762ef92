"""Assembler events/s against a bare join of the same log: python -m benchmarks.stream [--events N]."""

import argparse
import io
import json
import os
import random
import secrets
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import psutil
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.cimpl import NewTopic
from fastavro import schemaless_reader
from leyden.avro import COMMITTED, Event, LLMCall, Reward, RolloutEnded, RolloutStarted, encode
from leyden.avro.codec import HEADER_BYTES
from leyden.infra import deployment, kafka, topics
from leyden.infra.local.ports import free_port
from leyden.infra.settings import RoleSettings

N_CALLS, WINDOW = 3, 300
EVENTS_A_ROLLOUT = N_CALLS + 3
BAR = 0.3


def call(rollout: str, n: int) -> Event:
    """A call of about 2 KB."""
    body = LLMCall(
        call_id=f"{rollout}-{n}",
        started_us=n,
        request_digest=struct.pack("<Q", n),
        retry_count=0,
        status="completed",
        agent=None,
        response_id=f"{rollout}-{n}",
        version_start=1,
        version_end=1,
        n_prompt_tokens=150,
        n_completion_tokens=50,
        ended_us=n + 1,
        first_token_us=None,
        policy="policy",
        model="policy",
        route="/v1/chat/completions",
        stream=False,
        http_status=200,
        error=None,
        finish_reason="stop",
        temperature=1.0,
        top_p=1.0,
        max_tokens=None,
        prompt_ids=bytes(range(200)) * 3,
        completion_ids=bytes(range(200)),
        logprobs=bytes(range(200)),
        request=b'{"messages": "how many apples are left when three are eaten"}' * 8,
        response=b'{"choices": "seven"}' * 20,
    )
    return Event(f"{rollout}/{n}", rollout, 1, 1, body)


def rollout_events(rollout: str) -> list[bytes]:
    """One rollout, encoded."""
    start = RolloutStarted("c", "train", "policy", rollout, 1, "d", "runner")
    return [
        encode(Event(f"{rollout}/s", rollout, 1, 1, start)),
        *(encode(call(rollout, n)) for n in range(N_CALLS)),
        encode(Event(f"{rollout}/r", rollout, 1, 1, Reward(1.0, "bench", "reward"))),
        encode(Event(f"{rollout}/e", rollout, 1, 1, RolloutEnded("c", "succeeded", N_CALLS))),
    ]


def load(settings: RoleSettings, n_rollouts: int) -> None:
    """WINDOW rollouts open at once, their events interleaved."""
    rng = random.Random(1)
    producer = kafka.producer(settings.kafka, linger_ms=20)
    live: list[tuple[bytes, list[bytes]]] = []
    begun = 0
    while begun < n_rollouts or live:
        while len(live) < WINDOW and begun < n_rollouts:
            name = f"{begun:032x}"
            live.append((name.encode(), rollout_events(name)))
            begun += 1
        place = rng.randrange(len(live))
        key, events = live[place]
        while True:
            try:
                producer.produce(settings.prefix + topics.EVENTS, events.pop(0), key)
                break
            except BufferError:
                producer.poll(0.1)
        if not events:
            live[place] = live[-1]
            live.pop()
        producer.poll(0)
    producer.flush(120)


def bare_join(settings: RoleSettings, n_events: int) -> float:
    """Events/s of consume, decode the prefix, join in a dict, produce whole trajectories. No state, no safety."""
    consumer = kafka.consumer(settings.kafka, f"{settings.prefix}bare")
    consumer.subscribe([settings.prefix + topics.EVENTS])
    producer = kafka.producer(settings.kafka)
    schema = COMMITTED.current("leyden.Event").head
    joined: dict[bytes, list[bytes]] = {}
    began, seen = 0.0, 0
    while seen < n_events:
        for message in consumer.consume(2000, 1.0):
            began = began or time.perf_counter()
            key, value = message.key(), message.value()
            assert key is not None
            assert value is not None
            stream = io.BytesIO(value)
            stream.seek(HEADER_BYTES)
            head = schemaless_reader(stream, schema, None, return_record_name=True)
            parts = joined.setdefault(key, [])
            parts.append(value)
            seen += 1
            if isinstance(head, dict) and head["body"][0] == "leyden.RolloutEnded":
                del joined[key]
                whole = b"".join(struct.pack("<I", len(part)) + part for part in parts)
                while True:
                    try:
                        producer.produce(f"{settings.prefix}bare", whole, key)
                        break
                    except BufferError:
                        producer.poll(0.05)
        producer.poll(0)
    producer.flush(120)
    rate = n_events / (time.perf_counter() - began)
    consumer.close()
    return rate


def metric(port: int, name: str) -> float:
    """One sample of the worker; 0 while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as response:
            lines = response.read().decode().splitlines()
    except OSError:
        return 0.0
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and line[len(name)] in "{ ")


def n_records(consumer: Consumer, topic: str) -> int:
    """How many records a topic holds."""
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    return sum(consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in partitions)


def assembler(settings: RoleSettings, n_events: int, folder: Path) -> tuple[float, float]:
    """(events/s from the first record taken to the last trajectory acknowledged, CPU us an event) of one worker."""
    port = free_port()
    env = os.environ | {
        "LEYDEN_PREFIX": settings.prefix,
        "LEYDEN_KAFKA__BOOTSTRAP": settings.kafka.bootstrap,
        "LEYDEN_KAFKA__PARTITIONS": str(settings.kafka.partitions),
        "LEYDEN_OBJECTS__ENDPOINT": settings.objects.endpoint,
        "LEYDEN_OBJECTS__ACCESS_KEY": settings.objects.access_key,
        "LEYDEN_OBJECTS__SECRET_KEY": settings.objects.secret_key.get_secret_value(),
        "LEYDEN_OBJECTS__BUCKET": settings.objects.bucket,
        "LEYDEN_STATE_DIR": str(folder),
    }
    command = [sys.executable, "-P", "-m", "leyden", "assemble", "--metrics-port", str(port)]
    outputs, topic = kafka.consumer(settings.kafka, f"{settings.prefix}outputs"), settings.prefix + topics.TRAJECTORIES
    with subprocess.Popen(command, env=env) as process:
        try:
            began, cpu = 0.0, 0.0
            deadline = time.monotonic() + 600
            # Kafka is asked for the trajectories, as each look at the worker's metrics costs it milliseconds.
            while not began or n_records(outputs, topic) < n_events / EVENTS_A_ROLLOUT:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the assembler ended or hangs (exit code {process.poll()})")
                if not began and metric(port, "leyden_assemble_records_total"):
                    began, cpu = time.perf_counter(), sum(psutil.Process(process.pid).cpu_times()[:2])
                time.sleep(0.05)
            wall = time.perf_counter() - began
            cpu = sum(psutil.Process(process.pid).cpu_times()[:2]) - cpu
            return n_events / wall, cpu / n_events * 1e6
        finally:
            process.terminate()
            process.wait(30)
            outputs.close()


def main() -> None:
    """Measure both sides and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--bootstrap", help="a running Kafka (with LEYDEN_OBJECTS__*); none: one is started")
    options = parser.parse_args()
    n_rollouts = options.events // EVENTS_A_ROLLOUT
    n_events = n_rollouts * EVENTS_A_ROLLOUT
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = RoleSettings.load()
        if options.bootstrap is None:
            from leyden.infra.local.stack import StackSpec, start

            running = stack.enter_context(start(StackSpec(folder / "services", RoleSettings(), apply_topics=False)))
            settings = running.settings
        else:
            settings = settings.model_copy(
                update={"kafka": settings.kafka.model_copy(update={"bootstrap": options.bootstrap})}
            )
        settings = settings.model_copy(update={"prefix": f"bench{secrets.token_hex(3)}."})
        deployment.apply(settings)
        create_bare(settings)
        load(settings, n_rollouts)
        bare = bare_join(settings, n_events)
        rate, cpu_us = assembler(settings, n_events, folder / "state")
    ratio = rate / bare
    print(
        json.dumps(
            {
                "name": "stream",
                "machine": f"{os.cpu_count()} cores, {psutil.virtual_memory().total >> 30} GiB",
                "figures": {
                    "events": n_events,
                    "assembler_events_per_s": round(rate),
                    "bare_events_per_s": round(bare),
                    "assembler_cpu_us_per_event": round(cpu_us, 1),
                },
                "bars": {"bare_ratio": {"value": round(ratio, 3), "at_least": BAR, "holds": ratio >= BAR}},
            }
        )
    )


def create_bare(settings: RoleSettings) -> None:
    """The topic of the bare join's trajectories, like `trajectories`."""
    name = f"{settings.prefix}bare"
    new = NewTopic(name, num_partitions=settings.kafka.partitions, replication_factor=1)
    admin = kafka.admin(settings.kafka)
    admin.create_topics([new])[name].result()


if __name__ == "__main__":
    main()
