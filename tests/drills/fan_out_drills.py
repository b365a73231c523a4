"""What does a fleet that reads by enhanced fan-out do when processes die, connections break, and the stream changes?

Kinesis refuses a second subscription of a consumer to a shard for 5 s after the last one began (ResourceInUse). The
embedded server does, too, so the longest gap of a drill includes these seconds: a shard that moves within them waits.
"""

import time

from fleet import require, running_fleet, wait_for
from process_drills import kill_9, sigterm
from stream_drills import reshard_storm
from verdict import LEASE, finish

CONSUMER = "drillers"


def kill_9_fan_out(directory, store, *, full):
    """The same as `kill-9`, with fan-out: the survivor waits up to 6 s longer if the victim subscribed within 5 s of
    its death.
    """
    return kill_9(directory, store, full=full, fan_out=CONSUMER)


def sigterm_fan_out(directory, store, *, full):
    """The same as `sigterm`, with fan-out: the subscriptions are closed before the leases are released, and no record
    is handled twice.
    """
    return sigterm(directory, store, full=full, fan_out=CONSUMER)


def reshard_storm_fan_out(directory, store, *, full):
    """The same as `reshard-storm`, with fan-out: the end of a subscription names the child shards, nothing is lost, and
    the order is kept.
    """
    return reshard_storm(directory, store, full=full, fan_out=CONSUMER)


def cut_fan_out(directory, store, *, full):
    """Again and again, subscriptions are reset, ended, or broken off by exceptions: nothing is lost, and no record is
    handled twice.
    """
    with running_fleet(directory, store, shards=4, lease_duration=LEASE, fan_out=CONSUMER) as fleet:
        fleet.start_all("a", "b")
        load = fleet.load()
        fleet.wait_owned(["a", "b"], 15, "two workers share")
        faults = fleet.kinesis.faults
        rules = [
            faults.fan_out_reset(chance=0.02),
            faults.fan_out_end(chance=0.02),
            faults.fan_out_exception("InternalFailureException", chance=0.02),
        ]
        time.sleep(60.0 if full else 15.0)
        hits = [rule.hits for rule in rules]
        require(all(hits), f"each happened: {hits}")
        faults.clear()
        tally = finish(fleet, load, duplicates=0, limit=40.0)
        ended = len(tally.told("SubscriptionEnded"))
        require(not tally.told("LeaseLost"), "no lease was lost")
        return {"faults": sum(hits), "subscriptions ended": ended, "tally": tally}


def server_away_fan_out(directory, store, *, full):
    """Kinesis resets every connection and is unreachable for some seconds: reading continues afterwards, and no record
    is handled twice.
    """
    with running_fleet(directory, store, shards=4, lease_duration=LEASE, fan_out=CONSUMER) as fleet:
        fleet.start_all("a", "b")
        load = fleet.load()
        fleet.wait_owned(["a", "b"], 15, "two workers share")
        time.sleep(1.0)
        with fleet.kinesis.outage():
            time.sleep(15.0 if full else 3.0)
            back_at = time.monotonic()
        wait_for(lambda: fleet.tally().handled[-1].at > back_at, 25, "reading goes on")
        resumed = next(one.at for one in fleet.tally().handled if one.at > back_at) - back_at
        tally = finish(fleet, load, duplicates=0, limit=40.0)
        require(not tally.told("LeaseLost"), "no lease was lost")
        return {"resumed after": resumed, "tally": tally}
