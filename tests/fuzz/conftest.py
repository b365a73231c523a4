"""The targets are a module beside the tests: the campaigns import them by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
