"""Draws all pictures of the documentation: ``python docs/pictures/draw.py``.

This script writes each ``*.svg`` in this directory. Pictures of decisions are drawn from the code: the retry table from
``shardline.core.producer.verdicts``, the changes of a lease from ``shardline.core.leases``, and the states of a held
lease and of a reader from the tables in ``shardline.core.consumer``. The plots show the figures in ``tuning.json``,
which ``benchmarks/tuning.py`` writes, and in ``../benchmarks.json``, which ``benchmarks/bench_report.py`` writes.
``tests/docs/test_pictures.py`` fails if a picture is out of date.
"""

import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from concepts import group_picture, split_picture, stream_picture  # noqa: E402 - beside this file, and no package
from demo import demo  # noqa: E402
from growth import growth_plot  # noqa: E402
from lease_life import lease_life  # noqa: E402
from peers import latency_plot, peers_plot  # noqa: E402
from pen import Picture  # noqa: E402
from pipeline import pipeline  # noqa: E402
from plots import aggregate_plot, linger_plot  # noqa: E402
from reshard import reshard  # noqa: E402
from retry_table import retry_table  # noqa: E402
from states import lease_phases, reader_states  # noqa: E402

PICTURES: dict[str, Callable[[], Picture]] = {
    "demo.svg": demo,
    "stream.svg": stream_picture,
    "group.svg": group_picture,
    "split.svg": split_picture,
    "pipeline.svg": pipeline,
    "retries.svg": retry_table,
    "lease.svg": lease_life,
    "phases.svg": lease_phases,
    "reader.svg": reader_states,
    "reshard.svg": reshard,
    "tuning_linger.svg": linger_plot,
    "tuning_aggregate.svg": aggregate_plot,
    "growth.svg": growth_plot,
    "peers.svg": peers_plot,
    "latency.svg": latency_plot,
}


def drawn() -> dict[str, str]:
    """Return every picture, by the name of its file."""
    return {name: draw().svg() for name, draw in PICTURES.items()}


if __name__ == "__main__":
    for name, svg in drawn().items():
        (HERE / name).write_text(svg)
