"""Does the typed sample application, which the type checkers read, also run?"""

import asyncio
from runpy import run_path

from tests.docs import pages


def test_the_sample_application(kinesis, tmp_path):
    names = run_path(str(pages.ROOT / "tests" / "typing" / "sample_application.py"))
    stored, totals, counts = asyncio.run(names["main"]("orders", tmp_path / "leases.db", {"read_timeout": 10}))
    assert stored == 301
    assert totals.by_customer == {f"customer-{n}": sum(range(n, 300, 3)) for n in range(3)}
    assert totals.refused == 1
    assert counts.records == {"delivered": 301}
