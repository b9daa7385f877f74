"""The methods of the contract: parse, decide, format. No decision is made here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import grpc
import structlog

from metronome.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from scheduler_service import convert
from scheduler_service.core.errors import ErrorReason, SchedulerError, StateError
from scheduler_service.core.explain import explain
from scheduler_service.core.placement import place
from scheduler_service.core.plan import plan
from scheduler_service.core.policy import Policy, check_policy
from scheduler_service.core.state import ClusterState
from scheduler_service.core.validate import validate, validate_to_place
from scheduler_service.core.verify import verify
from scheduler_service.drain import Drain
from scheduler_service.errors import DRAINING, UNKNOWN_CALLER, fail, refuse, refuse_draining, refuse_unknown_caller
from scheduler_service.metrics import CRASHED, SchedulerMetrics
from scheduler_service.observers import ObserverThread, PlannedCall
from scheduler_service.profiles import Profile, Profiles
from scheduler_service.traces import CallTrace, Traces
from service_shell.access import Access

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

log = structlog.get_logger(__name__)


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Answers calls; keeps nothing between them but the profiles. `access` None: everybody may call."""

    def __init__(
        self,
        profiles: Profiles,
        metrics: SchedulerMetrics | None = None,
        access: Access | None = None,
        traces: Traces | None = None,
    ) -> None:
        self._profiles = profiles
        self._traces = traces or Traces()
        self._metrics = metrics
        self._access = access
        self.drain = Drain()
        self._observers: Sequence[ObserverThread] = ()

    def use(self, profiles: Profiles) -> None:
        """Answer by these profiles from the next call on."""
        self._profiles = profiles

    @property
    def profiles(self) -> Profiles:
        """Those in use."""
        return self._profiles

    def show_plans_to(self, observers: Sequence[ObserverThread]) -> None:
        """Offer every planned call to these from the next on."""
        self._observers = observers

    async def Plan(self, request: scheduler_pb2.PlanRequest, context: Context) -> scheduler_pb2.PlanResponse:
        return await self._call(context, "Plan", self._plan, request)

    async def PlanStream(
        self, request_iterator: AsyncIterator[scheduler_pb2.PlanRequest], context: Context
    ) -> AsyncIterator[scheduler_pb2.PlanResponse]:
        await self._check_not_draining(context, "PlanStream")
        with self.drain.stream():
            try:
                async for request in request_iterator:
                    yield await self._answer(context, "PlanStream", self._plan, request)
            except asyncio.CancelledError:
                if not self.drain.is_over:
                    raise
                await refuse_draining(context)

    async def Verify(self, request: scheduler_pb2.VerifyRequest, context: Context) -> scheduler_pb2.VerifyResponse:
        return await self._call(context, "Verify", self._verify, request)

    async def Place(self, request: scheduler_pb2.PlaceRequest, context: Context) -> scheduler_pb2.PlaceResponse:
        return await self._call(context, "Place", self._place, request)

    async def ListProfiles(
        self, request: scheduler_pb2.ListProfilesRequest, context: Context
    ) -> scheduler_pb2.ListProfilesResponse:
        return await self._call(context, "ListProfiles", self._list_profiles, request)

    def _plan(self, request: scheduler_pb2.PlanRequest) -> scheduler_pb2.PlanResponse:
        policy = self._policy(request)
        cluster = _cluster(request)
        plans = plan(cluster, policy)
        if request.explain:
            plans = explain(cluster, plans, policy)
        response = scheduler_pb2.PlanResponse(plans=map(convert.plan_message, plans))
        if self._metrics is not None:
            self._metrics.planned(self._profile_name(request), cluster, plans)
        if self._observers:
            call = PlannedCall(request=request, response=response, policy=policy, cluster=cluster, plans=plans)
            for observer in self._observers:
                observer.offer(call)
        return response

    def _verify(self, request: scheduler_pb2.VerifyRequest) -> scheduler_pb2.VerifyResponse:
        policy = self._policy(request)
        cluster = _cluster(request)
        if len(request.plans) != len(cluster.executors):
            description = f"{len(request.plans)} plans for {len(cluster.executors)} executors"
            raise StateError("plans", ErrorReason.INCONSISTENT, description, {"value": str(len(request.plans))})
        plans = [convert.plan_from(message, f"plans[{i}]") for i, message in enumerate(request.plans)]
        violations = [
            violation
            for executor, answer in zip(cluster.executors, plans, strict=True)
            for violation in verify(executor, answer, policy)
        ]
        return scheduler_pb2.VerifyResponse(violations=convert.violation_messages(violations))

    def _place(self, request: scheduler_pb2.PlaceRequest) -> scheduler_pb2.PlaceResponse:
        cluster = _cluster(request)
        requests = convert.requests_from(request.requests, "requests")
        validate_to_place(requests, max(len(cluster.tenants), 1), "requests")
        assignments = place(
            cluster,
            requests,
            convert.num_cached_tokens_from(request, len(cluster.executors)),
            convert.placement_from(request),
            request.seed,
            frozenset(request.excluded_executor_ids),
        )
        return scheduler_pb2.PlaceResponse(assignments=convert.assignment_messages(assignments))

    def _policy(self, request: scheduler_pb2.PlanRequest | scheduler_pb2.VerifyRequest) -> Policy:
        choice = request.WhichOneof("policy_choice")
        if choice is None:
            return self._profiles.default.policy
        if choice == "profile":
            return self._profiles.policy(request.profile, "profile")
        policy = convert.policy_from(request.policy, "policy")
        check_policy(policy, "policy")
        return policy

    def _profile_name(self, request: scheduler_pb2.PlanRequest) -> str:
        """Of the policy that a request was planned by."""
        choice = request.WhichOneof("policy_choice")
        if choice is None:
            return self._profiles.default.name
        return request.profile if choice == "profile" else "inline"

    def _list_profiles(self, request: scheduler_pb2.ListProfilesRequest) -> scheduler_pb2.ListProfilesResponse:
        """The token of a page is the name that the page before ended with."""
        if request.page_size < 0:
            value = str(request.page_size)
            raise StateError("page_size", ErrorReason.OUT_OF_RANGE, f"{value} is out of range", {"value": value})
        rest = [profile for name, profile in self._profiles.by_name.items() if name > request.page_token]
        page = rest[: request.page_size or None]
        return scheduler_pb2.ListProfilesResponse(
            profiles=map(self._profile_message, page),
            next_page_token=page[-1].name if len(page) < len(rest) else "",
        )

    def _profile_message(self, profile: Profile) -> scheduler_pb2.Profile:
        return scheduler_pb2.Profile(
            name=profile.name,
            description=profile.description,
            policy=convert.policy_message(profile.policy),
            is_default=profile is self._profiles.default,
        )

    async def _call(
        self, context: Context, method: str, decide: Callable[[_Request], _Response], request: _Request
    ) -> _Response:
        await self._check_not_draining(context, method)
        return await self._answer(context, method, decide, request)

    async def _check_not_draining(self, context: Context, method: str) -> None:
        if self.drain.has_begun:
            if self._metrics is not None:
                self._metrics.refused(method, DRAINING)
            await refuse_draining(context)

    async def _answer(
        self, context: Context, method: str, decide: Callable[[_Request], _Response], request: _Request
    ) -> _Response:
        """What `decide` says; where it raises, what a caller did wrong becomes its status, and our own bugs INTERNAL.

        Either ends this call alone.
        """
        with self._traces.call(method, tuple(context.invocation_metadata() or ())) as trace:
            started = time.perf_counter()
            if self._access is not None and self._access.caller(context) is None:
                log.info("refused", method=method, reason=UNKNOWN_CALLER, peer=context.peer())
                self._note_refusal(trace, method, UNKNOWN_CALLER)
                await refuse_unknown_caller(context)
            try:
                response = decide(request)
            except SchedulerError as error:
                log.info("refused", method=method, reason=error.reason.name, field=error.field, **_whose(request))
                self._note_refusal(trace, method, error.reason.name)
                await refuse(context, error)
            except Exception:
                log.exception("crashed", method=method, **_whose(request))
                self._note_refusal(trace, method, CRASHED)
                await fail(context, method)
            if self._metrics is not None:
                self._metrics.answered(method, time.perf_counter() - started)
            return response

    def _note_refusal(self, trace: CallTrace, method: str, reason: str) -> None:
        trace.refused(reason)
        if self._metrics is not None:
            self._metrics.refused(method, reason)


def _whose(request: object) -> dict[str, object]:
    """The executor and its iteration that a call is about, for the log; of several the first."""
    executors = getattr(getattr(request, "state", None), "executors", None)
    return {"executor_id": executors[0].executor_id, "iteration": executors[0].iteration} if executors else {}


def _cluster(
    request: scheduler_pb2.PlanRequest | scheduler_pb2.VerifyRequest | scheduler_pb2.PlaceRequest,
) -> ClusterState:
    if not request.HasField("state"):
        raise StateError("state", ErrorReason.MISSING_FIELD, "is required")
    cluster = convert.cluster_from(request.state, "state")
    validate(cluster)
    return cluster
