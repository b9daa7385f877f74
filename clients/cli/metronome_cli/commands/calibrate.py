"""`metronome calibrate`: the hardware profile of a real executor."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from metronome_cli.command_error import CommandError
from metronome_cli.errors import executor_errors
from metronome_cli.lab_options import lab_errors, progress_bar
from metronome_cli.options import ADDRESS, INT64, POSITIVE
from metronome_cli.trust import Trust, trust_options
from metronome_client import AsyncInferenceClient


@click.command()
@click.argument("address", metavar="HOST:PORT", type=ADDRESS)
@trust_options
@click.option("--workload", type=click.Path(path_type=Path), help="Have it run this.  [default: a mix of all lengths]")
@click.option("--requests", type=POSITIVE, default=60, show_default=True, help="Have it run so many.")
@click.option("--seed", type=INT64, default=0, show_default=True, help="Of all that is drawn.")
@click.option(
    "--out", type=click.Path(path_type=Path), default="hardware.toml", show_default=True, help="Where to write."
)
def calibrate(address: str, trust: Trust, workload: Path | None, requests: int, seed: int, out: Path) -> None:
    """Fit a hardware profile to a run of the executor at HOST:PORT, for `metronome simulate --hardware`.

    The executor is given requests to run, and then asked for its sizes and for what it has learnt that passes cost.
    """
    with lab_errors(), executor_errors(address):
        from metronome_lab.hardware.profile import Hardware, write_hardware
        from metronome_lab.live.calibrate import calibrate as fit
        from metronome_lab.live.calibrate import mix
        from metronome_lab.workload.traces import read_workload

        given = None if workload is None else read_workload(workload, seed).part(0, requests)

        async def run() -> Hardware:
            async with AsyncInferenceClient(address, tls=trust.tls, token=trust.token) as client:
                played = given or mix((await client.model_info()).max_model_len, num_requests=requests, seed=seed)
                with progress_bar("requests", len(played)) as show:
                    return await fit(client, played, name=out.stem, seed=seed, on_progress=show)

        hardware = asyncio.run(run())
        try:
            write_hardware(hardware, out)
        except OSError as error:
            raise CommandError(f"cannot write {out}: {error.strerror}") from None
    latency = hardware.latency
    click.echo(hardware.description)
    click.echo(
        f"A pass takes {latency.pass_us:,.0f} us, a prefill token {latency.prefill_token_us:.1f} us, a decode "
        f"{latency.decode_request_us:.1f} us and {latency.kv_token_us * 1000:.2f} us for 1,000 tokens of KV, "
        f"off by {latency.relative_error:.0%} in the mean."
    )
    click.echo(f"wrote {out}")
