"""Which task may call the handler, if at most so many handlers may run at once?"""

from unittest.mock import patch

from shardline.core.consumer import handler_pool
from shardline.core.consumer.handler_pool import HandlerPool
from shardline.core.consumer.taker import Taker


class Task(Taker):
    def serve(self, now):
        raise NotImplementedError


def pool_of(concurrency, tasks):
    pool, made = HandlerPool(concurrency), [Task() for _ in range(tasks)]
    for task in made:
        pool.add(task)
    return pool, made


def test_at_most_as_many_tasks_work_as_are_allowed():
    pool, (first, second) = pool_of(2, 2)
    pool.start(first)
    assert (pool.may_take, pool.may_retry) == (True, True)
    pool.start(second)
    assert (pool.may_take, pool.may_retry, pool.at_work) == (False, False, [first, second])
    pool.rest(first)
    assert (pool.may_take, pool.at_work) == (True, [second])


def test_the_first_idle_task_is_woken_if_records_wait():
    pool, (first, second) = pool_of(2, 2)
    assert pool.next_task(has_records=True) is None
    pool.wait(first)
    pool.wait(second)
    assert pool.next_task(has_records=True) is first
    assert pool.next_task(has_records=False) is None
    pool.rest(first)
    assert pool.next_task(has_records=True) is second


def test_no_task_is_woken_while_as_many_work_as_are_allowed():
    pool, (first, second) = pool_of(1, 2)
    pool.start(first)
    pool.wait(second)
    assert pool.next_task(has_records=True) is None


def test_a_pausing_task_leaves_its_place_to_others():
    pool, (first, second) = pool_of(1, 2)
    pool.start(first)
    pool.rest(first)
    pool.pause(first)
    assert (pool.may_take, pool.may_retry) == (True, True)
    pool.start(second)
    pool.rest(first)
    pool.wait_to_retry(first)
    assert pool.next_task(has_records=True) is None
    pool.rest(second)
    assert not pool.may_take, "the retry comes first"
    assert pool.next_task(has_records=True) is first


def test_new_records_wait_while_too_many_tasks_pause():
    pool, (first, second) = pool_of(5, 2)
    with patch.object(handler_pool, "PAUSING_MAX", 2):
        pool.pause(first)
        assert pool.may_take
        pool.pause(second)
        assert not pool.may_take
    assert pool.may_retry


def test_as_many_tasks_are_started_as_have_work():
    pool, _ = pool_of(3, 0)
    assert [pool.missing(waiting) for waiting in (0, 2, 9)] == [0, 2, 3]


def test_tasks_that_were_just_started_count_as_free():
    pool, (first, *_) = pool_of(5, 2)
    assert [pool.missing(waiting) for waiting in (2, 4, 9)] == [0, 2, 3]
    pool.start(first)
    assert [pool.missing(waiting) for waiting in (1, 4, 9)] == [0, 3, 3]


def test_no_task_is_started_while_one_is_idle_or_none_may_work():
    pool, (first, second) = pool_of(2, 2)
    pool.wait(first)
    assert pool.missing(9) == 0
    pool.start(first)
    pool.start(second)
    assert pool.missing(9) == 0


def test_tasks_that_pause_or_wait_for_a_retry_are_replaced():
    pool, (first, second) = pool_of(3, 2)
    pool.pause(first)
    assert pool.missing(9) == 2
    pool.wait_to_retry(second)
    assert pool.missing(9) == 2


def test_more_tasks_than_can_work_are_surplus():
    pool, (first, second, third) = pool_of(2, 3)
    assert pool.is_surplus
    pool.pause(first)
    assert not pool.is_surplus
    pool.rest(first)
    pool.wait_to_retry(second)
    assert not pool.is_surplus
    pool.rest(second)
    third.is_over = True
    pool.rest(third)
    assert not pool.is_surplus
