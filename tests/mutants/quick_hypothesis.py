"""A pytest plugin for runs against mutants: Hypothesis draws the same cases for the same code, and shrinks nothing.

What kills a mutant today kills it tomorrow, and the first failing case is enough.
"""

from hypothesis import Phase, settings

settings.register_profile("mutants", derandomize=True, database=None, phases=[Phase.explicit, Phase.generate])
settings.load_profile("mutants")
