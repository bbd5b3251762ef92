"""`leyden status`: health, versions and lag of the stack on this machine."""

import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient

from .. import kafka
from ..checkpoint_log import read_lineage
from ..errors import LeydenError
from ..settings import RoleSettings
from . import state
from .supervisor import Phase

Say = Callable[[str], None]
_LAG = re.compile(r"^leyden_\w+_lag_records\S* (\S+)$", re.MULTILINE)


def status(state_dir: Path, say: Say) -> bool:
    """Say what runs, which versions, how far readers are behind; True where everything is ready."""
    found = state.read(state_dir)
    if found is None:
        say(f"no stack in {state_dir}")
        return False
    if not found.running:
        say("the supervisor is gone: leyden down")
    settings = state.settings_of(found.env)
    for line in _process_lines(found):
        say(line)
    for line in (*_version_lines(settings), *_position_lines(found), *_lag_lines(settings)):
        say(line)
    return found.running and all(process["phase"] == Phase.READY for process in found.processes)


def _process_lines(found: state.StackState) -> Iterator[str]:
    yield f"{'process':12} {'state':12} {'pid':>7} {'up':>8} {'MiB':>6} {'restarts':>8}  address"
    for process in found.processes:
        identity = state.ProcessId(**process["id"]) if process["id"] else None
        alive = identity is not None and identity.alive()
        phase = process["phase"] if alive or not identity else "gone"
        pid = identity.pid if identity and alive else "-"
        up_s = f"{time.time() - identity.started:.0f} s" if identity and alive else "-"
        mib = f"{_memory_mib(identity.pid):.0f}" if identity and alive else "-"
        line = f"{process['name']:12} {phase:12} {pid!s:>7} {up_s:>8} {mib:>6} {process['restarts']:>8}  "
        yield line + (process["url"] or "") + (f"  {process['reason']}" if process["reason"] else "")


def _memory_mib(pid: int) -> float:
    """Of the process and all that it started; what they share counts once."""
    try:
        leader = psutil.Process(pid)
        return sum(p.memory_full_info().pss for p in [leader, *leader.children(recursive=True)]) / (1 << 20)
    except psutil.NoSuchProcess:
        return 0.0


def _version_lines(settings: RoleSettings) -> Iterator[str]:
    try:
        with urllib.request.urlopen(f"{settings.engine.url}/leyden/version", timeout=3.0) as response:
            engine = json.load(response)
        serves = f"version {engine['version']}" + (f", loading {engine['loading']}" if engine["loading"] else "")
    except (OSError, ValueError) as error:
        serves = f"does not answer: {error}"
    yield f"engine       {serves}"
    try:
        lineage = read_lineage(settings)
    except (LeydenError, KafkaException, KeyError) as error:
        yield f"checkpoints  not readable: {error}"
        return
    live = f"version {lineage.live.version}" if lineage.live else "none"
    newest = max(lineage.versions, default=0)
    yield f"policy       {settings.policy}: live {live}, newest {newest}, rolled back {sorted(lineage.rolled_back)}"


def _position_lines(found: state.StackState) -> Iterator[str]:
    """Records behind the end by read position, of the roles that say it themselves."""
    for process in found.processes:
        if not process["url"] or process["is_service"]:
            continue
        try:
            with urllib.request.urlopen(f"{process['url']}/metrics", timeout=3.0) as response:
                lags = _LAG.findall(response.read().decode())
        except OSError:
            continue  # its line above says that it does not answer
        if lags:
            yield f"read         {process['name']}: {sum(float(lag) for lag in lags):.0f} behind"


def _lag_lines(settings: RoleSettings) -> Iterator[str]:
    """Records behind the end by committed offset: at assemble and group what a restart would read again."""
    admin, reader = kafka.admin(settings.kafka), kafka.consumer(settings.kafka, f"{settings.prefix}status")
    try:
        listed = admin.list_consumer_groups(request_timeout=5.0).result().valid or []
        for group in sorted(g.group_id for g in listed if g.group_id.startswith(settings.prefix)):
            for topic, behind in sorted(_behind(admin, reader, group).items()):
                yield f"group        {group}: {behind} behind in {topic}"
    except (KafkaException, LeydenError) as error:
        yield f"kafka        does not answer: {error}"
    finally:
        reader.close()


def _behind(admin: AdminClient, reader: Consumer, group: str) -> dict[str, int]:
    """Topic -> records between the committed offsets of `group` and the ends of its partitions."""
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
    committed = [at for at in answer.topic_partitions or [] if at.offset >= 0]
    ends = {topic: kafka.end_offsets(reader, topic) for topic in {at.topic for at in committed}}
    behind = dict.fromkeys(ends, 0)
    for at in committed:
        behind[at.topic] += max(0, ends[at.topic][at.partition][1] - at.offset)
    return behind
