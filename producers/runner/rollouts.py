"""One task from claim to end: start, run, settle, reward, end, and again where it failed."""

import logging
import threading
import time
from concurrent.futures import Future

import orjson

from ...avro import Body, Event, Reward, RolloutEnded, RolloutStarted, Task, new_id, now_ms
from ..emit import EmitError, post
from ..identity import RESOURCES, Identity, rollout_base_url
from ..publisher import Place, Publisher
from .claims import LOST, Begin, Decision, Done, GiveUp
from .host_client import HostClient, HostLostError
from .metrics import ATTEMPTS_TOTAL, ROLLOUT_SECONDS, SLOTS_BUSY
from .settings import RunnerSettings
from .wire import Outcome, Start

log = logging.getLogger(__name__)
# Beyond the task's own timeout, the attempt's deadline in the log covers settling and a restart of Kafka.
DEADLINE_SLACK_S = 60.0
MAX_ERROR_CHARS = 4000


class RolloutRunner:
    """Runs tasks, each in the calling thread. `stop` makes it begin no more attempts."""

    def __init__(self, settings: RunnerSettings, host: HostClient, publisher: Publisher) -> None:
        self._settings, self._host, self._publisher = settings, host, publisher
        self._stopping = threading.Event()
        self._current: dict[str, str] = {}  # rollout -> key of the running attempt

    def run(self, task: Task, decision: Decision) -> bool:
        """True: the rollout has its final end in Kafka. False: it was cancelled and must be delivered again.

        The order that makes it safe: RolloutStarted is acknowledged before the agent begins; the gateway says that all
        calls are in Kafka before the reward and the end are written; the offset moves after the end is acknowledged.
        """
        with SLOTS_BUSY.track_inprogress(), ROLLOUT_SECONDS.time():
            if isinstance(decision, Done):
                return True
            if isinstance(decision, GiveUp):
                for claim in decision.lost:
                    last = claim is decision.lost[-1]
                    self._end(task, claim.attempt, claim.claim_id, Outcome("", "failed", error=LOST), not last)
                return True
            for claim in decision.lost:
                self._end(task, claim.attempt, claim.claim_id, Outcome("", "failed", error=LOST), True)
            try:
                return self._attempts(task, decision)
            except HostLostError:
                # The attempt stays without an end; whoever gets the task again ends it and begins the next.
                return False

    def stop(self, grace_s: float) -> None:
        """Let what runs go on for `grace_s`, then cancel it."""
        self._stopping.set()
        deadline = time.monotonic() + grace_s
        while self._current and time.monotonic() < deadline:
            time.sleep(0.05)
        self.cancel(set(self._current))

    def cancel(self, rollouts: set[str]) -> None:
        """End these rollouts' agents; each comes out of `run` as not done."""
        for rollout_id in rollouts:
            key = self._current.get(rollout_id)
            if key is not None:
                self._host.kill(key)

    def _attempts(self, task: Task, begin: Begin) -> bool:
        attempt, n_failures = begin.attempt, begin.n_failures
        while not self._stopping.is_set():
            claim_id = new_id()
            self._send(task, attempt, self._started(task, claim_id)).result()
            outcome = self._run_agent(task, attempt)
            ATTEMPTS_TOTAL.labels(outcome.status).inc()
            if outcome.status == "cancelled":
                self._end(task, attempt, claim_id, outcome, will_retry=True)
                return False
            n_failures += outcome.status != "succeeded"
            will_retry = outcome.status != "succeeded" and n_failures < task.max_attempts
            self._end(task, attempt, claim_id, outcome, will_retry)
            if not will_retry:
                return True
            attempt += 1
        return False

    def _started(self, task: Task, claim_id: str) -> RolloutStarted:
        return RolloutStarted(
            claim_id=claim_id,
            purpose=task.purpose,
            policy=task.policy,
            group_id=task.group_id,
            group_size=task.group_size,
            task_digest=task.task_digest,
            origin="runner",
            timeout_s=task.timeout_s + self._settings.settle_timeout_s + DEADLINE_SLACK_S,
            task=task.payload,
        )

    def _run_agent(self, task: Task, attempt: int) -> Outcome:
        gateway, api_key = self._settings.gateway_url, self._settings.api_key.get_secret_value()
        base_url = rollout_base_url(gateway, task.rollout_id, attempt, task.temperature)
        env = Identity(task.rollout_id, attempt, gateway, api_key).environment()
        env |= {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": api_key}
        env |= {RESOURCES: orjson.dumps(task.resources).decode()}
        key = f"{task.rollout_id}/{attempt}"
        self._current[task.rollout_id] = key
        try:
            payload, model = orjson.loads(task.payload), self._settings.engine.model
            return self._host.run(Start(key, payload, env, base_url, api_key, model, task.timeout_s))
        finally:
            del self._current[task.rollout_id]

    def _end(self, task: Task, attempt: int, claim_id: str, outcome: Outcome, will_retry: bool) -> None:
        """Settle, then the reward, then the end, each acknowledged before the next: no end without its reward."""
        n_calls = self._settle(task.rollout_id, attempt)
        if outcome.status == "succeeded" and outcome.value is not None:
            self._send(task, attempt, Reward(outcome.value, "agent", "reward")).result()
        if outcome.error is not None:
            log.warning(
                "rollout %s attempt %d %s: %s", task.rollout_id, attempt, outcome.status, outcome.error.strip()[-500:]
            )
        error = outcome.error[-MAX_ERROR_CHARS:] if outcome.error else None
        ended = RolloutEnded(claim_id, outcome.status, n_calls, will_retry, error)
        self._send(task, attempt, ended).result()

    def _settle(self, rollout_id: str, attempt: int) -> int | None:
        timeout_s = self._settings.settle_timeout_s
        to = Identity(rollout_id, attempt, self._settings.gateway_url, self._settings.api_key.get_secret_value())
        try:
            path = f"/v1/rollouts/{rollout_id}/attempts/{attempt}/settle"
            n_calls = post(to, path, {"timeout_s": timeout_s}, timeout_s + 5.0).get("n_calls")
        except EmitError as error:
            log.warning("rollout %s attempt %d ends with an unknown number of calls: %s", rollout_id, attempt, error)
            return None
        return n_calls if isinstance(n_calls, int) else None

    def _send(self, task: Task, attempt: int, body: Body) -> "Future[Place]":
        return self._publisher.send_event(Event(new_id(), task.rollout_id, attempt, now_ms(), body))
