"""Metrics of live services, read over HTTP as Prometheus reads them."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from metronome.scheduler.v1 import scheduler_pb2_grpc
from support.scheduler_process import plan_request
from support.scraping import Scrape, metrics_address, scrape
from support.services import SCHEDULER, Service, running_executor, started, wait_until
from support.wire import TIMEOUT_SECONDS, Client, connected, greedy

PROMPTS = {"first": 20, "second": 12}  # prompt (a token a letter) to tokens of its answer
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


@pytest.fixture(scope="module")
def scheduler(services_directory: Path) -> Iterator[Service]:
    command = [*SCHEDULER, "--port", "0", "--metrics-address", "0", "--shadow-profile", "vllm"]
    with started(services_directory, command) as service:
        yield service


@pytest.fixture(scope="module")
def executor(services_directory: Path, tiny_model_directory: Path, scheduler: Service) -> Iterator[Service]:
    arguments = ("--metrics-address", "0", "--metrics-max-tenants", "1", "--num-swap-blocks", "8")
    with running_executor(
        services_directory, tiny_model_directory, *arguments, scheduler=[scheduler.address]
    ) as service:
        yield service


@pytest.fixture(scope="module")
def client(executor: Service) -> Iterator[Client]:
    with connected(executor.address) as client:
        yield client


@pytest.fixture(scope="module")
def served(client: Client, executor: Service, scheduler: Service) -> dict[str, Scrape]:
    """What both services tell after two requests that were answered and one that its client left."""
    for tenant, (prompt, num_tokens) in zip(("alice", "bob"), PROMPTS.items(), strict=True):
        request = greedy(prompt, num_tokens)
        request.tenant = tenant
        client.generate(request)
    stream = client.open(greedy("left alone", 400))
    next(stream)
    stream.cancel()
    assert client.refused(greedy("", 1)).info.reason == "EMPTY_PROMPT"
    wait_until(client.is_idle)
    return {"executor": scrape(metrics_address(executor)), "scheduler": scrape(metrics_address(scheduler))}


def test_an_executor_counts_the_requests_that_it_was_sent(served: dict[str, Scrape], client: Client) -> None:
    told, counters = served["executor"], client.books().counters
    ended = told.by_label("metronome_requests_finished_total", "reason")
    assert {reason: count for reason, count in ended.items() if count} == {"length": 2, "cancelled": 1}
    assert told.value("metronome_requests_accepted_total") == 3
    refused = told.by_label("metronome_requests_refused_total", "reason")
    assert {reason for reason, count in refused.items() if count} == {"empty_prompt"}
    assert told.value("metronome_generation_tokens_total") == counters.num_output_tokens
    assert told.value("metronome_prompt_tokens_total") == counters.num_prefill_tokens == 5 + 6 + 10
    assert told.value("metronome_time_to_first_token_seconds_count") == 3
    gaps = told.value("metronome_inter_token_latency_seconds_count")
    assert gaps == counters.num_output_tokens - 3
    assert told.value("metronome_e2e_request_latency_seconds_count") == 2
    assert told.value("metronome_request_generation_tokens_sum") == sum(PROMPTS.values())
    assert told.value("metronome_iteration_time_seconds_count") == counters.num_iterations
    assert sum(told.by_label("metronome_plans_total", "source").values()) == counters.num_iterations
    assert told.value("metronome_computed_tokens_total", phase="decode") == counters.num_output_tokens - 3
    assert told.value("metronome_prefix_cache_queries_total") == counters.num_prefix_query_tokens


def test_an_executor_that_is_idle_says_so(served: dict[str, Scrape]) -> None:
    told = served["executor"]
    for name in ("num_requests_running", "num_requests_waiting", "num_requests_swapped", "kv_cache_usage_perc"):
        assert told.value(f"metronome_{name}") == 0
    assert told.value("metronome_num_free_blocks") == told.value("metronome_num_blocks") == 64
    assert told.value("metronome_num_swap_blocks") == 8
    assert told.value("metronome_planning_failing") == 0
    assert told.value("metronome_cache_config_info", num_blocks="64", block_size="16") == 1


def test_parts_of_an_iteration_are_parts_of_it(served: dict[str, Scrape]) -> None:
    told = served["executor"]
    parts = told.by_label("metronome_iteration_part_time_seconds_sum", "part")
    assert set(parts) == {"plan", "wait_for_plan", "build", "forward", "sample", "stream"}
    assert min(parts.values()) > 0
    # The round trip goes on beside the pass before; the rest follow one another.
    del parts["plan"]
    assert sum(parts.values()) <= told.value("metronome_iteration_time_seconds_sum")


def test_tenants_over_the_bound_share_a_label(served: dict[str, Scrape]) -> None:
    told = served["executor"]
    assert told.by_label("metronome_tenant_requests_finished_total", "tenant") == {"alice": 1, "other": 2}
    tokens = told.by_label("metronome_tenant_generation_tokens_total", "tenant")
    assert tokens["alice"] == PROMPTS["first"]


def test_a_scheduler_counts_what_it_decided(served: dict[str, Scrape], client: Client) -> None:
    told, counters = served["scheduler"], client.books().counters
    num_plans = told.value("metronome_scheduler_plans_total", profile="metronome")
    assert num_plans >= counters.num_iterations - counters.num_safe_plans
    assert told.value("metronome_scheduler_call_time_seconds_count", method="Plan") == num_plans
    assert told.value("metronome_scheduler_state_requests_count") == num_plans
    assert told.value("metronome_scheduler_requests_admitted_total", reason="admitted") >= 3
    assert told.value("metronome_scheduler_scheduled_tokens_total", phase="prefill") >= 21
    assert told.value("metronome_scheduler_info", profile="metronome", shadow_profile="vllm") == 1


def test_a_shadow_tells_how_often_it_would_decide_otherwise(served: dict[str, Scrape], scheduler: Service) -> None:
    num_plans = served["scheduler"].value("metronome_scheduler_plans_total", profile="metronome")
    address = metrics_address(scheduler)
    wait_until(lambda: scrape(address).value("metronome_scheduler_shadow_plans_total") >= num_plans)
    told = scrape(address)
    kinds = told.by_label("metronome_scheduler_shadow_differences_total", "kind")
    assert set(kinds) == {"admitted", "resumed", "evicted", "scheduled_tokens", "rejected"}
    assert told.value("metronome_scheduler_shadow_different_plans_total") <= sum(kinds.values())
    assert told.value("metronome_scheduler_observer_calls_dropped_total", observer="shadow") == 0


def test_a_refused_call_is_counted_by_its_reason(scheduler: Service) -> None:
    request = plan_request()
    request.state.executors[0].requests.num_prompt_tokens.append(1)
    with grpc.insecure_channel(scheduler.address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        with pytest.raises(grpc.RpcError):
            stub.Plan(request, timeout=TIMEOUT_SECONDS)
    told = scrape(metrics_address(scheduler))
    assert told.value("metronome_scheduler_calls_refused_total", method="Plan", reason="column_length") == 1


@pytest.mark.parametrize("service", ["executor", "scheduler"])
def test_promtool_has_nothing_to_say_against_the_metrics(served: dict[str, Scrape], service: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    check = subprocess.run(
        [promtool, "check", "metrics"], input=served[service].text, capture_output=True, text=True, timeout=60
    )
    assert (check.returncode, check.stdout + check.stderr) == (0, "")


@pytest.mark.parametrize("service", ["executor", "scheduler"])
def test_every_metric_is_in_the_operators_table_and_nothing_else_is(served: dict[str, Scrape], service: str) -> None:
    """With its type: a row is `| name | type | ...`."""
    (section,) = re.findall(rf"^### Of an? {service}\n(.*?)(?=^##)", OPERATIONS.read_text(), re.DOTALL | re.MULTILINE)
    documented = dict(re.findall(r"^\| `(metronome_\w+)(?:\{[^`]*\})?` \| (\w+) \|", section, re.MULTILINE))
    shown = {
        name + ("_total" if family.type == "counter" else ""): family.type
        for name, family in served[service].own.items()
    }
    assert documented == shown


def test_without_an_address_there_are_no_metrics(services_directory: Path) -> None:
    with started(services_directory, [*SCHEDULER, "--port", "0"]) as service:
        assert "metrics_listening" not in service.log


def test_an_address_that_is_taken_ends_the_start_with_a_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [*SCHEDULER, "--port", "0", "--metrics-address", port]
        start = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert start.returncode == 1
    assert f"127.0.0.1:{port} is taken; choose another with --metrics-address" in start.stderr
