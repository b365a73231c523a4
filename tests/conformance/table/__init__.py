"""The table: every scenario that is played, in the order in which it is listed.

AWS's answers are known from its documentation (API reference and developer guide) and, for texts, from the tests of
kinesalite, LocalStack and moto, which ran against AWS: docs/tested/differences.md names them. If AWS's text is not
known, the table has ``ANY_TEXT``: a recording will have it.
"""

from tests.conformance.table import (
    consumers,
    end_to_end,
    newer,
    protocol,
    reading,
    resharding,
    settings,
    streams,
    validation,
    writing,
)

SCENARIOS = {
    scenario.name: scenario
    for part in (streams, validation, writing, reading, resharding, consumers, settings, newer, protocol, end_to_end)
    for scenario in part.SCENARIOS
}
