"""PF1 to PF4 are the invariants of ``shardline.core.consumer.prefetch``."""

from shardline.core.consumer.prefetch import PrefetchBudget


def test_pf1_a_shard_that_holds_nothing_may_always_read():
    budget = PrefetchBudget(100)
    budget.hold("hot", 5_000)
    assert budget.admits("idle")
    assert not budget.admits("hot")


def test_pf2_alone_a_shard_has_the_whole_budget():
    budget = PrefetchBudget(100)
    budget.hold("a", 99)
    assert budget.admits("a")
    budget.hold("a", 1)
    assert not budget.admits("a")


def test_pf2_nobody_reads_beyond_its_fair_share():
    budget = PrefetchBudget(100)
    budget.hold("a", 50)
    assert budget.admits("a")
    budget.hold("b", 10)
    assert not budget.admits("a")
    assert budget.admits("b")


def test_pf2_idle_shards_take_nothing_from_a_busy_one():
    budget = PrefetchBudget(100)
    for name in range(1000):
        assert budget.admits(str(name))
    budget.hold("busy", 60)
    assert budget.admits("busy")


def test_pf3_a_full_budget_stops_all_that_hold_something():
    budget = PrefetchBudget(100)
    for name in "abc":
        budget.hold(name, 34)
    assert not any(budget.admits(name) for name in "abc")
    assert budget.total_bytes == 102


def test_pf4_who_was_refused_is_named_when_there_is_room():
    budget = PrefetchBudget(100)
    budget.hold("a", 60)
    budget.hold("b", 60)
    assert not budget.admits("a")
    assert budget.take_admitted() == []
    budget.release("b", 60)
    assert budget.take_admitted() == ["a"]
    assert budget.take_admitted() == []


def test_a_shard_that_was_admitted_waits_no_more():
    budget = PrefetchBudget(100)
    budget.hold("a", 100)
    assert not budget.admits("a")
    budget.release("a", 40)
    assert budget.admits("a")
    assert budget.take_admitted() == []


def test_what_is_released_in_parts_is_counted_in_parts():
    budget = PrefetchBudget(100)
    budget.hold("a", 0)
    budget.hold("a", 70)
    budget.release("a", 20)
    assert (budget.held_bytes("a"), budget.total_bytes) == (50, 50)
    budget.release("a", 50)
    assert (budget.held_bytes("a"), budget.total_bytes) == (0, 0)


def test_a_shard_that_is_forgotten_gives_everything_back_and_later_releases_mean_nothing():
    budget = PrefetchBudget(100)
    budget.hold("a", 100)
    assert not budget.admits("a")
    budget.forget("a")
    budget.release("a", 100)
    assert budget.total_bytes == 0
    assert budget.take_admitted() == []


def test_pf1_what_an_interrupt_left_in_the_sum_is_gone_when_nothing_is_held():
    budget = PrefetchBudget(100)
    budget.hold("a", 60)
    budget.total_bytes += 5  # as if a release had ended between its two steps
    budget.release("a", 60)
    assert budget.total_bytes == 0


def test_pf2_what_is_not_opened_counts_too():
    budget = PrefetchBudget(100)
    budget.keep("a", 90)
    assert budget.admits("a")  # PF1: it holds nothing that is opened
    budget.hold("b", 20)
    assert not budget.admits("b")
    budget.keep("a", 50)
    assert budget.take_admitted() == ["b"]
    budget.keep("a", 90)
    assert not budget.admits("b")
    budget.forget("a")
    assert budget.take_admitted() == ["b"]
