"""Does each alert fire when it should, and not before? Asks promtool (Debian's package ``prometheus``)."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from shardline.adapters.sinks.metric_table import METRICS
from shardline.adapters.sinks.prometheus_sink import full_name

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
RULES = {rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
GROUP = 'stream="orders", group="billing"'

# The alert: series with their values, one a minute. It must fire after 20 minutes, and not with the quiet values.
SCENES = {
    "ShardlineHandlingLag": {f"consumer_handling_lag_seconds{{{GROUP}}}": ("400x30", "200x30")},
    "ShardlineLagNearsRetention": {f"consumer_handling_lag_seconds{{{GROUP}}}": ("50000x30", "40000x30")},
    "ShardlineNoLeases": {f"consumer_leases{{{GROUP}}}": ("0x30", "1x30")},
    "ShardlineHandlerStuck": {f"consumer_stuck_handlers{{{GROUP}}}": ("1x30", "0x30")},
    "ShardlineHandlerSlow": {
        f'consumer_handler_seconds_bucket{{{GROUP}, le="30.0"}}': ("0x30", "0+60x30"),
        f'consumer_handler_seconds_bucket{{{GROUP}, le="60.0"}}': ("0+60x30", "0+60x30"),
        f'consumer_handler_seconds_bucket{{{GROUP}, le="+Inf"}}': ("0+60x30", "0+60x30"),
    },
    "ShardlineHandlerFailing": {f"consumer_handler_retries_total{{{GROUP}}}": ("0+1x30", "3x30")},
    "ShardlineDeadLetters": {f"consumer_dead_lettered_records_total{{{GROUP}}}": ("0x15 1x15", "1x30")},
    "ShardlineDeadLettersNotWritten": {f"consumer_dead_letter_failures_total{{{GROUP}}}": ("0+1x30", "1x30")},
    "ShardlineConsumerStopped": {
        f"consumer_failures_total{{{GROUP}}}": ("0x15 1x15", "0x30"),
        f"consumer_stopped_records_total{{{GROUP}}}": ("0x30", "0x30"),
    },
    "ShardlineRecordsLost": {f"consumer_record_losses_total{{{GROUP}}}": ("0x15 1x15", "1x30")},
    "ShardlineStoreDown": {f"consumer_store_up{{{GROUP}}}": ("0x30", "1x30")},
    "ShardlineLeasesLost": {f"consumer_leases_lost_total{{{GROUP}}}": ("0x15 2x15", "2x30")},
    "ShardlineEventLoopBlocked": {f"consumer_stalls_total{{{GROUP}}}": ("0+1x30", "0x10 1x20")},
    "ShardlineRecordsFailed": {'producer_failed_records_total{stream="orders"}': ("0x15 9x15", "9x30")},
    "ShardlineProducerBehind": {'producer_oldest_waiting_seconds{stream="orders"}': ("20x30", "3x30")},
    "ShardlineBufferFull": {
        'producer_buffered_bytes{stream="orders"}': ("95x30", "50x30"),
        'producer_buffer_max_bytes{stream="orders"}': ("100x30", "100x30"),
    },
    "ShardlineHotShard": {
        'producer_rate_ratio{stream="orders"}': ("1x30", "0.9x30"),
        'producer_shard_backlog_seconds{stream="orders"}': ("9x30", "3x30"),
    },
    "ShardlineShardsUnknown": {'producer_shard_map_failures_total{stream="orders"}': ("0+1x30", "0x10 1x20")},
    "ShardlineWorkerDown": {'up{job="shardline", instance="a:1"}': ("0x30", "1x30")},
}


def promtool(*arguments):
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=120, check=False)


def fires(name, series, directory):
    """Whether the alert fires after 20 minutes of these series."""
    test = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": each, "values": values} for each, values in series.items()],
                "alert_rule_test": [{"eval_time": "20m", "alertname": name, "exp_alerts": []}],
            }
        ],
    }
    file = directory / "test.yml"
    file.write_text(json.dumps(test))
    ended = promtool("test", "rules", str(file))
    assert "FAILED" in ended.stdout + ended.stderr or ended.returncode == 0, ended.stderr
    return ended.returncode != 0  # promtool expected no alert


def test_promtool_accepts_the_files():
    for kind, file in (("rules", ALERTS), ("config", ALERTS.with_name("prometheus.yml"))):
        checked = promtool("check", kind, str(file))
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_alert_has_a_scene():
    assert set(SCENES) == set(RULES)


@pytest.mark.parametrize("name", RULES)
def test_the_alert_fires_only_when_it_should(name, tmp_path):
    def named(index):
        return {
            (each if each.startswith("up{") else f"shardline_{each}"): both[index]
            for each, both in SCENES[name].items()
        }

    assert fires(name, named(0), tmp_path)
    assert not fires(name, named(1), tmp_path)


def test_a_throttled_shard_is_hot_even_if_nothing_waits_for_it(tmp_path):
    series = {
        'shardline_producer_rate_ratio{stream="orders"}': "0.2x30",
        'shardline_producer_shard_backlog_seconds{stream="orders"}': "0x30",
    }
    assert fires("ShardlineHotShard", series, tmp_path)


def test_the_alerts_use_metrics_that_exist():
    known = {full_name(metric) for metric in METRICS}
    known |= {f"{full_name(metric)}_bucket" for metric in METRICS if metric.kind == "histogram"}
    for rule in RULES.values():
        names = {word.split("{")[0].split("[")[0].strip("()") for word in rule["expr"].replace("(", " ").split()}
        used = {name for name in names if name.startswith("shardline_")}
        assert used <= known
        assert used or rule["expr"].startswith("up{")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("warning", "critical")
