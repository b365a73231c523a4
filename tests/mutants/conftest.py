"""The runner and its list are modules beside the tests: they import each other by name, as the script does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
