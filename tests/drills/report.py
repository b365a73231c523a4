"""Shows the results of drills on the terminal and in a page."""

from typing import NamedTuple

HEAD = (
    "| drill | store | put | received | lost | duplicates | longest gap | what else was seen |",
    "|---|---|--:|--:|--:|--:|--:|---|",
)


def shown_fact(name, value):
    """Return a fact as short text. A float is a time, and a dict has counts."""
    if isinstance(value, dict):
        return f"{name}: {', '.join(f'{key.replace(chr(95), chr(32))} {count}' for key, count in value.items())}"
    return f"{name} {value:.2f} s" if isinstance(value, float) else f"{name} {value}"


class Line(NamedTuple):
    """The result of one drill on one store."""

    drill: str
    store: str
    seconds: float
    facts: dict
    problem: str | None

    def __str__(self):
        tally = self.facts.get("tally")
        facts = [shown_fact(name, value) for name, value in self.facts.items() if name != "tally"]
        seen = self.problem or "; ".join([str(tally), *facts])
        return f"{self.drill:<15} {self.store:<9} {'ok' if self.problem is None else 'FAILED':<7} {self.seconds:5.1f} s  {seen}"

    @property
    def row(self):
        """Return a row of the page's table."""
        if self.problem is not None:
            return f"| {self.drill} | {self.store} | | | | | | **failed**: {self.problem.splitlines()[0][:200]} |"
        tally = self.facts["tally"]
        counts = f"{len(tally.put):,} | {len(tally.first):,} | {len(tally.lost)} | {len(tally.repeated):,}"
        facts = [shown_fact(name, value) for name, value in self.facts.items() if name != "tally"]
        facts += [f"{why} {count:,}" for why, count in tally.notes.items()]
        return f"| {self.drill} | {self.store} | {counts} | {tally.longest_gap:.2f} s | {'; '.join(facts)} |"


def results(lines):
    """Return the table of a run, with a summary line."""
    tallies = [line.facts["tally"] for line in lines if line.problem is None]
    put, first, lost, repeated = (
        sum(len(getattr(tally, what)) for tally in tallies) for what in ("put", "first", "lost", "repeated")
    )
    runs = "1 run" if len(lines) == 1 else f"{len(lines)} runs"
    total = f"| **{runs}** | | {put:,} | {first:,} | {lost} | {repeated:,} | | |"
    return "\n".join([*HEAD, *(line.row for line in lines), total])


def catalogue(drills):
    """Return a table of all drills: the first sentence of each docstring, and the stores."""
    rows = [
        f"| `{name}` | {' '.join(drill.__doc__.partition(chr(10) * 2)[0].split())} | {', '.join(stores)} |"
        for name, (drill, stores) in drills.items()
    ]
    return "\n".join(["| drill | what happens, and what must hold | stores |", "|---|---|---|", *rows])


def begin_of(part):
    return f"<!-- results: {part} -->"


def has_part(page, part):
    return begin_of(part) in page.read_text()


def split_at(page, part):
    """Return the page before this part and after it, and the marks around the part."""
    begin, end = begin_of(part), "<!-- end of results -->"
    before, mark, rest = page.read_text().partition(begin)
    if not mark:
        raise ValueError(f"{page} has no mark {begin}")
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"{page} has no mark {end} after {begin}")
    return before, begin, end, after


def write_part(page, part, table):
    """Put this table between the page's marks for this part."""
    before, begin, end, after = split_at(page, part)
    page.write_text(f"{before}{begin}\n{table}\n{end}{after}")
