"""The options that several commands of ``shardline groups`` share."""

from collections.abc import Callable
from typing import Any

import click

from shardline.cli.time_arguments import duration_option

store_option = click.option(
    "--store",
    envvar="SHARDLINE_STORE",
    required=True,
    metavar="URL",
    help="URL of the lease store (also SHARDLINE_STORE).",
)
lease_duration_option = duration_option(
    "--lease-duration", "10s", "The group's lease duration; owners silent for longer count as dead.", "DURATION"
)
force_option = click.option("--force", is_flag=True, help="Change a live group too: its workers lose their leases.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")


def observe_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds ``--observe``."""
    return duration_option(
        "--observe",
        default,
        "Maximum time to watch the leases, to see which owners are alive; 0 does not watch.",
        "DURATION",
    )
