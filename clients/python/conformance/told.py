"""What the drivers of the conformance kit tell of clients: events, errors and results, as JSON."""

from __future__ import annotations

import json
import threading
from typing import Any

from metronome_client import GenerateOptions, MetronomeError, RetryPolicy, Tls

STREAMS = {"generate", "watch_state", "plan_stream"}
SCHEDULER_VERBS = {"plan", "plan_stream", "verify", "place", "list_profiles"}
REFUSED = (ValueError, TypeError)
_lock = threading.Lock()


def say(line: dict[str, Any]) -> None:
    """Write a line to the kit."""
    with _lock:
        print(json.dumps(line), flush=True)


def settings_from(content: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a client's constructor."""
    settings: dict[str, Any] = {"addresses": content["addresses"]}
    if "retry" in content:
        settings["retry"] = RetryPolicy(**content["retry"])
    if "tls" in content:
        settings["tls"] = Tls(root_certificates=content["tls"]["root_certificates"].encode())
    return settings | {name: content[name] for name in ("token", "timeout_s") if name in content}


def arguments_from(verb: str, content: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a method, in order and by name."""
    timeout = {"timeout_s": content["timeout_s"]} if "timeout_s" in content else {}
    match verb:
        case "generate":
            return (content.get("prompt", "Hello"), GenerateOptions(**content.get("options", {}))), timeout
        case "tokenize":
            return (content.get("text", "Hello"),), {}
        case "detokenize":
            return (content.get("token_ids", []),), {}
        case "cancel":
            return (content["request_id"],), {}
        case "plan" | "verify" | "place":
            return (scheduler_request(verb),), {}
        case "plan_stream":
            return ([scheduler_request("plan") for _ in range(content.get("times", 1))],), timeout
        case _:
            return (), timeout


def scheduler_request(verb: str) -> Any:
    """An empty one: a faulty server looks at none."""
    from metronome.scheduler.v1 import scheduler_pb2

    requests = {
        "plan": scheduler_pb2.PlanRequest,
        "verify": scheduler_pb2.VerifyRequest,
        "place": scheduler_pb2.PlaceRequest,
    }
    return requests[verb]()


def message(content: Any) -> dict[str, Any]:
    """A message of a stream."""
    kind = type(content).__name__
    kind = {"PlanResponse": "plan", "WatchStateResponse": "state"}.get(kind, kind.lower())
    return {"kind": kind, "text": getattr(content, "text", "")}


def result(verb: str, content: Any) -> Any:
    """What a verb gives that answers once."""
    match verb:
        case "tokenize":
            return list(content)
        case "detokenize":
            return content
        case "model_info":
            return content.model
        case "plan":
            return [plan.executor_id for plan in content.plans]
        case "list_profiles":
            return [profile.name for profile in content]
        case _:
            return None


def end(error: Exception | None = None) -> dict[str, Any]:
    """How a call ended."""
    if error is None:
        return {"code": "OK"}
    classes = [kind.__name__ for kind in type(error).__mro__]
    if not isinstance(error, MetronomeError):
        code = "REFUSED" if isinstance(error, REFUSED) else "UNKNOWN"
        return {"code": code, "error": classes[0], "classes": classes, "message": str(error)}
    return {
        "code": error.code.name,
        "error": classes[0],
        "classes": classes,
        "reason": error.reason,
        "domain": error.domain,
        "message": error.message,
        "metadata": error.metadata,
        "fields": [violation.subject for violation in error.field_violations],
        "over_quota": [violation.subject for violation in error.quota_violations],
        "retry_delay_s": error.retry_delay_s,
    }
