"""Which changes of state may a reader make?"""

from shardline.core.consumer.reader import OVER, TRANSITIONS, WITH_ITERATOR, ReaderState


def test_every_state_is_in_the_table_and_can_be_reached():
    assert set(TRANSITIONS) == set(ReaderState)
    reached, before = {ReaderState.STARTING}, set()
    while reached != before:
        before = set(reached)
        reached |= {after for state in before for after in TRANSITIONS[state]}
    assert reached == set(ReaderState)


def test_a_reader_that_is_over_stays_so_and_any_other_can_be_stopped():
    assert {ReaderState.ENDED, ReaderState.GONE, ReaderState.FAILED, ReaderState.STOPPED} == OVER
    assert all(ReaderState.STOPPED in TRANSITIONS[state] for state in set(ReaderState) - OVER)
    assert {ReaderState.READY, ReaderState.READING} == WITH_ITERATOR - OVER
