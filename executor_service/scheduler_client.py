"""Asks the scheduler service for plans: a planner for the engine, over several addresses.

Rules:
- One address is in use until it fails; then the next one that is not in back-off is tried, within the same time limit.
- An address that failed is left alone for a while that doubles with every failure in a row, with full jitter, so that a
  scheduler that comes back is not met by all executors at once.
- Where none can be asked, the engine is told at once how each failed last, and goes on with its safe plan.
- An address that cannot be reached, or not in time, does not answer. Any other failure is an answer: a refusal.

Calls are unary: any replica can answer any of them, and a call that fails costs nothing but itself.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import structlog

from executor_service.convert.plan import MalformedPlanError, plan_from_response
from executor_service.convert.state import cluster_state
from executor_service.engine.plan import Plan
from executor_service.engine.planner import FailureCause, PlanUnavailableError
from executor_service.engine.snapshot import Snapshot
from executor_service.recorder import Recorder
from executor_service.scheduler_tls import SchedulerTls
from executor_service.traces import Traces
from metronome.scheduler.v1 import policy_pb2, scheduler_pb2
from metronome.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from service_shell.pem import TlsError
from service_shell.watched_file import WatchedFile

log = structlog.get_logger()

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MIN_BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0

_NOT_ANSWERED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # The planner does its own failover; the channel only has to notice soon that a scheduler is back.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A proxy meant for the outside world is no way to a scheduler next door.
    ("grpc.enable_http_proxy", 0),
)


class _Replica:
    """One address, and when to leave it alone."""

    def __init__(self, address: str, tls: SchedulerTls | None) -> None:
        """Raises TlsError."""
        self.address = address
        self._tls = tls
        self._open()
        self.last_failure: Exception | None = None  # None: the last call succeeded, or none was made
        self._num_failures = 0
        self._not_before = 0.0

    @property
    def may_be_asked(self) -> bool:
        return time.monotonic() >= self._not_before

    def succeeded(self) -> None:
        self.last_failure = None
        self._num_failures = 0

    def failed(self, error: Exception) -> None:
        self.last_failure = error
        ceiling = min(MAX_BACKOFF_S, MIN_BACKOFF_S * 2**self._num_failures)
        self._num_failures = min(self._num_failures + 1, 16)
        self._not_before = time.monotonic() + random.uniform(0, ceiling)
        if self._tls is not None and self._tls.version() != self._tls_version:
            self._trust_anew()

    def close(self) -> None:
        self._channel.close()

    def _open(self) -> None:
        if self._tls is None:
            self._channel = grpc.insecure_channel(self.address, options=_CHANNEL_OPTIONS)
        else:
            self._tls_version = self._tls.version()
            self._channel = grpc.secure_channel(self.address, self._tls.credentials(), options=_CHANNEL_OPTIONS)
        self.stub = SchedulerServiceStub(self._channel)

    def _trust_anew(self) -> None:
        """Go on with the files as they are now; where they cannot be used, with those in use."""
        former = self._channel
        try:
            self._open()
        except TlsError as error:
            log.warning("tls_files_refused", error=str(error))
        else:
            former.close()
            log.info("tls_files_reloaded", scheduler=self.address)


class SchedulerClient:
    """A planner over gRPC (see engine/planner.py). Used by the engine's thread alone.

    ``policy``: a policy in full, the name of a profile, or None for the service's default. ``recorder``: gets every
    plan with its request; it is this client's to close.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        executor_id: str,
        timeout_s: float,
        policy: policy_pb2.Policy | str | None = None,
        recorder: Recorder | None = None,
        tls: SchedulerTls | None = None,
        token_file: Path | None = None,
        traces: Traces | None = None,
    ) -> None:
        """Raises TlsError or FileError."""
        assert addresses, "a planner needs an address"
        self._replicas = [_Replica(address, tls) for address in addresses]
        self.executor_id = executor_id
        self.timeout_s = timeout_s
        self._policy = policy
        self._token = None if token_file is None else WatchedFile("--scheduler-token-file", token_file, parse_token)
        self.recorder = recorder
        self.traces = traces or Traces()

    def request(self, snapshot: Snapshot) -> PendingCall:
        message = scheduler_pb2.PlanRequest(state=cluster_state(snapshot, executor_id=self.executor_id))
        if isinstance(self._policy, str):
            message.profile = self._policy
        elif self._policy is not None:
            message.policy.CopyFrom(self._policy)
        return PendingCall(self, message)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with a call."""
        return () if self._token is None else (("authorization", f"Bearer {self._token.contents}"),)

    def replicas(self) -> list[_Replica]:
        """Those that may be asked now, the one in use first."""
        return [replica for replica in self._replicas if replica.may_be_asked]

    def failure(self) -> PlanUnavailableError:
        """How the addresses failed when each was last asked."""
        failures = [(r.address, r.last_failure) for r in self._replicas if r.last_failure is not None]
        is_refusal = any(_is_answer(error) for _, error in failures)
        return PlanUnavailableError(
            "; ".join(f"{address}: {_describe(error)}" for address, error in failures),
            cause=FailureCause.REFUSAL if is_refusal else FailureCause.NO_ANSWER,
        )

    def use(self, replica: _Replica) -> None:
        """Ask this one first from now on."""
        self._replicas.remove(replica)
        self._replicas.insert(0, replica)

    def close(self) -> None:
        for replica in self._replicas:
            replica.close()
        if self.recorder is not None:
            self.recorder.close()


class PendingCall:
    """A plan that has been asked for; asks on, at the next address, when a scheduler fails."""

    def __init__(self, client: SchedulerClient, message: scheduler_pb2.PlanRequest) -> None:
        self._client = client
        self._message = message
        self._started = time.monotonic()
        self._deadline = self._started + client.timeout_s
        self._answered = 0.0
        self._candidates = client.replicas()
        self._replica: _Replica | None = None
        self._call: grpc.CallFuture[scheduler_pb2.PlanResponse] | None = None
        state = message.state.executors[0]
        self._trace = client.traces.plan(
            executor_id=state.executor_id, iteration=state.iteration, num_requests=len(state.requests.id)
        )
        self._ask_next()

    def result(self) -> Plan:
        """The plan of the first scheduler that gives one in time. Raises PlanUnavailableError."""
        while self._call is not None and self._replica is not None:
            try:
                response = self._call.result()
                plan = plan_from_response(response, executor_id=self._client.executor_id)
            except (grpc.RpcError, grpc.FutureCancelledError, MalformedPlanError) as error:
                self._replica.failed(error)
                self._ask_next()
            else:
                # gRPC wakes this thread before it calls back.
                self._answered = self._answered or time.monotonic()
                self._replica.succeeded()
                self._client.use(self._replica)
                self._trace.answered()
                if self._client.recorder is not None:
                    self._client.recorder.record(self._message, response)
                return plan
        failure = self._client.failure()
        self._trace.failed(str(failure))
        raise failure

    @property
    def round_trip_us(self) -> int:
        return max(0, int((self._answered - self._started) * 1e6))

    def cancel(self) -> None:
        self._trace.given_up()
        if self._call is not None:
            self._call.cancel()  # type: ignore[no-untyped-call]

    def _ask_next(self) -> None:
        self._replica, self._call, self._answered = None, None, 0.0
        remaining_s = self._deadline - time.monotonic()
        if self._candidates and remaining_s > 0:
            self._replica = self._candidates.pop(0)
            # What is left of the time is shared, so that one address that hangs leaves time for the others.
            timeout_s = remaining_s / (len(self._candidates) + 1)
            metadata = (*self._client.metadata(), *self._trace.metadata)
            self._call = self._replica.stub.Plan.future(self._message, timeout=timeout_s, metadata=metadata)
            self._call.add_done_callback(self._note_answer)

    def _note_answer(self, _: object) -> None:
        self._answered = time.monotonic()


def parse_token(text: str) -> str:
    """The token that is all of a file. Raises ValueError."""
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("holds no token: one word of ASCII characters")
    return token


def _is_answer(error: Exception) -> bool:
    if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
        return error.code() not in _NOT_ANSWERED
    return isinstance(error, MalformedPlanError)


def _describe(error: Exception) -> str:
    if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
        details = error.details() or ""
        if details.startswith("failed to connect to all addresses"):  # then gRPC's own story, and the reason at its end
            details = details.rpartition(": ")[2]
        return f"{error.code().name}: {details}"
    return str(error) or type(error).__name__
