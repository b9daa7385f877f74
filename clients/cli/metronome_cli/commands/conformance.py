"""`metronome conformance`: run the promises of the contract against any scheduler or executor."""

from __future__ import annotations

import shlex
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import grpc
from rich.table import Table

from metronome_cli.consoles import table_console
from metronome_cli.errors import CommandError, unreachable
from metronome_cli.options import ADDRESS, DEFAULT_SCHEDULER
from metronome_cli.trust import Trust, trust_options

if TYPE_CHECKING:
    from metronome_conformance import Result, Scenario
    from metronome_conformance.driver import ProcessDriver
    from metronome_conformance.wire import Driver, Secured

EXIT_BROKEN = 1
CONNECT_S = 2.0
_STYLES = {"holds": "green", "broken": "bold red", "skipped": "dim"}


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML, too."),
        click.option("--slow", is_flag=True, help="Run what takes half a minute and more, too."),
        click.option("--only", multiple=True, metavar="NAME", help="Run this scenario alone; may be repeated."),
    ):
        command = option(command)
    return command


_driver_option = click.option(
    "--driver",
    metavar="COMMAND",
    help="Make the calls through this program (another language), which connects as its own flags say.",
)


@click.group()
def conformance() -> None:
    """Check that a server or a client keeps the contract, ours or a stranger's: exit status 0 only if all holds.

    Every row of the table is a promise of the contract, with where it stands there. The scenarios are files that can be
    read, and are shared by all languages: clients/conformance/.
    """


@conformance.command()
@click.argument("address", type=ADDRESS)
@trust_options
@_driver_option
@_options
@click.pass_context
def scheduler(
    context: click.Context,
    address: str,
    trust: Trust,
    junit: Path | None,
    slow: bool,
    only: tuple[str, ...],
    driver: str | None,
) -> None:
    """Check the scheduler at ADDRESS: it is sent states, and its plans are judged by the kit's own rules."""
    from metronome_conformance.scheduler_kit import run_scheduler_scenarios

    scenarios = _scenarios("scheduler", only, slow=slow)
    _check_listening(address, "scheduler", trust)
    secured = _secured(trust)
    calls = _driver(driver, address, secured)
    try:
        _report(context, run_scheduler_scenarios(calls, scenarios, secured), junit)
    finally:
        calls.close()


@conformance.command()
@click.argument("address", type=ADDRESS)
@click.option(
    "--scheduler-listen",
    type=ADDRESS,
    default=DEFAULT_SCHEDULER,
    show_default=True,
    metavar="HOST:PORT",
    help="Where the kit serves plans: the executor must have been started with it as its only scheduler.",
)
@click.option("--drain", is_flag=True, help="Run what drains the executor, too: it takes no requests afterwards.")
@trust_options
@_driver_option
@_options
@click.pass_context
def executor(
    context: click.Context,
    address: str,
    scheduler_listen: str,
    drain: bool,
    trust: Trust,
    junit: Path | None,
    slow: bool,
    only: tuple[str, ...],
    driver: str | None,
) -> None:
    """Check the executor at ADDRESS: the kit is its client, and serves the plans that it must obey.

    Start the executor idle, with the kit as its only scheduler; nobody else should use it meanwhile. Where it has an
    access file the token is an operator's, or "*"'s, since the kit reads the books.
    """
    from metronome_conformance.executor_kit import ExecutorUnderTest, UnreadyError, run_executor_scenarios
    from metronome_conformance.planner import ServedPlanner

    scenarios = [scenario for scenario in _scenarios("executor", only, slow=slow) if drain or not scenario.destructive]
    try:
        served = ServedPlanner(scheduler_listen)
    except OSError as error:
        raise CommandError(str(error), "name another address with --scheduler-listen") from None
    secured = _secured(trust)
    under_test, calls = ExecutorUnderTest(address, secured), _driver(driver, address, secured)
    try:
        under_test.wait_until_ready(served.planner)
        _report(context, run_executor_scenarios(calls, under_test, served.planner, scenarios), junit)
    except UnreadyError as error:
        raise CommandError(f"{address}: {error}") from None
    except grpc.RpcError as error:
        raise CommandError(f"the executor at {address} went away: {error}") from None
    finally:
        calls.close()
        under_test.close()
        served.close()


@conformance.command()
@click.argument("driver", metavar="DRIVER")
@_options
@click.pass_context
def client(context: click.Context, driver: str, junit: Path | None, slow: bool, only: tuple[str, ...]) -> None:
    """Check a client of any language: the kit is servers that go wrong, and DRIVER, a command, uses the client."""
    from metronome_conformance.client_kit import run_client_scenarios
    from metronome_conformance.driver import ProcessDriver

    scenarios = _scenarios("client", only, slow=slow)
    calls = _started(lambda: ProcessDriver(shlex.split(driver)), driver)
    try:
        _report(context, run_client_scenarios(calls, scenarios), junit)
    finally:
        calls.close()


def _scenarios(kind: str, only: tuple[str, ...], *, slow: bool) -> Sequence[Scenario]:
    from metronome_conformance import ScenarioError, load_scenarios

    try:
        return load_scenarios(kind, only=only, slow=slow)
    except ScenarioError as error:
        raise CommandError(str(error), "see clients/conformance/") from None


def _secured(trust: Trust) -> Secured | None:
    """What the kit connects with. A driver that is a program connects as its own command line says."""
    from metronome_conformance.wire import Secured

    if trust.tls is None or trust.credentials is None:
        return None
    roots = trust.tls.root_certificates
    try:
        context = ssl.create_default_context(cadata=None if roots is None else roots.decode())
        if "certificate" in trust.files:
            context.load_cert_chain(trust.files["certificate"], trust.files["key"])
    except (ssl.SSLError, ValueError) as error:
        raise CommandError(f"--tls-ca, or --tls-certificate and its key, cannot be used: {error}") from None
    context.set_alpn_protocols(["h2"])
    return Secured(credentials=trust.credentials, context=context)


def _driver(command: str | None, address: str, secured: Secured | None) -> Driver:
    from metronome_conformance.driver import ProcessDriver
    from metronome_conformance.wire import PythonDriver

    if command is None:
        return PythonDriver(address, secured)
    return _started(lambda: ProcessDriver(shlex.split(command), address), command)


def _started(start: Callable[[], ProcessDriver], command: str) -> ProcessDriver:
    try:
        return start()
    except OSError as error:
        raise CommandError(f"cannot start the driver {command!r}: {error.strerror}") from None


def _check_listening(address: str, service: str, trust: Trust) -> None:
    with trust.open(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_S)
        except grpc.FutureTimeoutError:
            raise unreachable(service, address) from None


def _report(context: click.Context, results: Iterator[Result], junit: Path | None) -> None:
    """Print the table, write the file, and end with the exit status."""
    from metronome_conformance import junit_xml
    from metronome_conformance.driver import DriverError
    from metronome_conformance.report import Verdict, all_hold

    began, found = time.monotonic(), []
    try:
        for result in results:
            found.append(result)
            click.echo(f"\r{len(found)} checked\r", nl=False, err=True)
    except DriverError as error:
        raise CommandError(str(error)) from None
    table_console().print(_table(found))
    counts = {verdict: sum(result.verdict is verdict for result in found) for verdict in Verdict}
    told = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
    click.echo(f"{told}; {time.monotonic() - began:.1f} s")
    if junit is not None:
        try:
            junit.write_text(junit_xml(found), encoding="utf-8")
        except OSError as error:
            raise CommandError(f"cannot write {junit}: {error.strerror}") from None
    if not all_hold(found):
        context.exit(EXIT_BROKEN)


def _table(results: Sequence[Result]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("scenario", "", "what the contract says, and where"):
        table.add_column(heading, overflow="fold")
    for result in results:
        scenario, verdict = result.scenario, result.verdict.value
        said = f"{scenario.promise} [dim]{_plain(scenario.source)}[/dim]"
        findings = [f"[{_STYLES[verdict]}]{_plain(finding)}[/]" for finding in result.findings]
        table.add_row(scenario.name, f"[{_STYLES[verdict]}]{verdict}[/]", "\n".join([said, *findings]))
    return table


def _plain(text: str) -> str:
    """Text whose brackets are no markup."""
    return text.replace("[", r"\[")
