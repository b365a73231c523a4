"""Makes the runner and its list importable by name, as they are for the script."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
