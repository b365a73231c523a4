"""The list of drills.

Each drill is a function of a directory, the kind of store and ``full``: real workers on a real store, under load. It
returns the facts that it observed, or raises ``DrillError``. No drill passes if a record was lost. Without ``full``,
the times are scaled down.
"""

from chaos_drill import chaos
from fan_out_drills import cut_fan_out, kill_9_fan_out, reshard_storm_fan_out, server_away_fan_out, sigterm_fan_out
from handler_drills import blocked_loop, overdue, poison, poison_stops, slow_handler
from java_drills import (
    java_after_us,
    java_fan_out,
    java_reads,
    newest_java_reads,
    us_after_java,
)
from mixed_drills import java_leads, java_rolling, newest_java_leads, newest_java_rolling, old_java
from process_drills import balance, clock_jumps, hot_shard, kill_9, pause, rolling_restart, sigterm
from producer_drills import full_buffer, soak
from store_drills import slow_store, store_down, store_full, throttled
from stream_drills import (
    idle_shards,
    many_shards,
    network_faults,
    odd_data,
    reshard,
    reshard_latest,
    reshard_storm,
    trimmed,
)

EVERYWHERE = ("sqlite", "redis", "dynamodb", "postgres")  # drills for which the store matters

# For each name: the drill, and the stores on which ``--store all`` runs it.
DRILLS = {
    "kill-9": (kill_9, EVERYWHERE),
    "sigterm": (sigterm, EVERYWHERE),
    "rolling-restart": (rolling_restart, EVERYWHERE),
    "balance": (balance, EVERYWHERE),
    "hot-shard": (hot_shard, ("sqlite",)),
    "pause": (pause, EVERYWHERE),
    "clock-jumps": (clock_jumps, EVERYWHERE),
    "store-down": (store_down, EVERYWHERE),
    "slow-store": (slow_store, EVERYWHERE),
    "store-full": (store_full, ("sqlite", "redis", "postgres")),
    "throttled": (throttled, ("dynamodb",)),
    "reshard": (reshard, EVERYWHERE),
    "reshard-latest": (reshard_latest, ("sqlite",)),
    "reshard-storm": (reshard_storm, EVERYWHERE),
    "network-faults": (network_faults, ("sqlite",)),
    "full-buffer": (full_buffer, ("sqlite",)),
    "slow-handler": (slow_handler, ("sqlite",)),
    "overdue": (overdue, ("sqlite",)),
    "poison": (poison, ("sqlite",)),
    "poison-stops": (poison_stops, ("sqlite",)),
    "blocked-loop": (blocked_loop, ("sqlite",)),
    "many-shards": (many_shards, ("sqlite",)),
    "idle-shards": (idle_shards, ("sqlite",)),
    "odd-data": (odd_data, ("sqlite",)),
    "trimmed": (trimmed, ("sqlite",)),
    "chaos": (chaos, EVERYWHERE),
    "kill-9-fan-out": (kill_9_fan_out, EVERYWHERE),
    "sigterm-fan-out": (sigterm_fan_out, EVERYWHERE),
    "reshard-storm-fan-out": (reshard_storm_fan_out, EVERYWHERE),
    "cut-fan-out": (cut_fan_out, EVERYWHERE),
    "server-away-fan-out": (server_away_fan_out, EVERYWHERE),
}

# These take minutes, or need Java, so they run only if they are named.
LONG = {
    "soak": (soak, ("sqlite",)),
    "java-reads": (java_reads, ("dynamodb",)),
    "java-after-us": (java_after_us, ("dynamodb",)),
    "us-after-java": (us_after_java, ("dynamodb",)),
    "java-leads": (java_leads, ("dynamodb",)),
    "java-rolling": (java_rolling, ("dynamodb",)),
    "newest-java-leads": (newest_java_leads, ("dynamodb",)),
    "newest-java-rolling": (newest_java_rolling, ("dynamodb",)),
    "old-java": (old_java, ("dynamodb",)),
    "java-fan-out": (java_fan_out, ("dynamodb",)),
    "newest-java-reads": (newest_java_reads, ("dynamodb",)),
}
