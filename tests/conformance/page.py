"""Writes the list of scenarios and the cost into docs/tested: ``python -m tests.conformance.page``."""

import re
from pathlib import Path

from tests.conformance.cost import PRICES_OF, counted, estimate
from tests.conformance.table import SCENARIOS

FOLDER = Path(__file__).parents[2] / "docs" / "tested"
PAGES = FOLDER / "conformance.md", FOLDER / "conformance-on-aws.md", FOLDER / "conformance-scenarios.md"
JOBS = 6


def cost() -> str:
    played = [one for one in SCENARIOS.values() if not one.not_on_aws and not one.account_wide]
    whole = estimate(played, JOBS)
    return (
        f"A run of the whole table creates {counted(whole.streams, 'stream')}, of which {whole.on_demand_streams} are "
        f"on-demand. The other streams have {counted(whole.shards, 'shard')} in total. Registered consumers read "
        f"{counted(whole.consumer_shards, 'shard')} by enhanced fan-out. The run puts "
        f"{counted(whole.put_units, 'payload unit')}. The whole run costs at most {whole.dollars:.2f} US dollars (prices of "
        f"us-east-1, {PRICES_OF}), and takes about {counted(round(whole.minutes), 'minute')}."
    )


def scenarios() -> str:
    rows = [f"| `{one.name}` | {one.title}{_where(one)} | {len(one.steps)} |" for one in SCENARIOS.values()]
    return "\n".join(["| name | what it shows | steps |", "|---|---|---|", *rows])


def _where(one) -> str:
    if one.not_on_aws:
        return f" (not on AWS: {one.not_on_aws})"
    return " (on AWS only with `--account-settings`)" if one.account_wide else ""


def written(text: str) -> str:
    """Return a page with the current cost and scenarios of the table."""
    for name, part in {"cost": cost(), "scenarios": scenarios()}.items():
        block = f"<!-- {name} -->\n{part}\n<!-- end of {name} -->"
        text = re.sub(
            rf"<!-- {name} -->(?:\n.*?<!-- end of {name} -->)?",
            lambda _, block=block: block,
            text,
            count=1,
            flags=re.DOTALL,
        )
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text()))
