"""Tests of ``shardline.core.consumer.prefetch``."""

from shardline.core.consumer.prefetch import PrefetchBudget


def test_no_shard_reads_beyond_its_fair_share():
    budget = PrefetchBudget(100)
    budget.hold("a", 50)
    assert budget.admits("a")
    budget.hold("b", 10)
    assert not budget.admits("a")
    assert budget.admits("b")


def test_who_was_refused_is_named_when_there_is_room():
    budget = PrefetchBudget(100)
    budget.hold("a", 60)
    budget.hold("b", 60)
    assert not budget.admits("a")
    assert budget.take_admitted() == []
    budget.release("b", 60)
    assert budget.take_admitted() == ["a"]
    assert budget.take_admitted() == []


def test_what_an_interrupt_left_in_the_sum_is_gone_when_nothing_is_held():
    budget = PrefetchBudget(100)
    budget.hold("a", 60)
    budget.total_bytes += 5  # as if a release had been interrupted between its two steps
    budget.release("a", 60)
    assert budget.total_bytes == 0


def test_what_is_not_opened_counts_too():
    budget = PrefetchBudget(100)
    budget.keep("a", 90)
    assert budget.admits("a")  # it has no opened pages
    budget.hold("b", 20)
    assert not budget.admits("b")
    budget.keep("a", 50)
    assert budget.take_admitted() == ["b"]
    budget.keep("a", 90)
    assert not budget.admits("b")
    budget.forget("a")
    assert budget.take_admitted() == ["b"]
