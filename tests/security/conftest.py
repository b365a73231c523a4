"""The audit and the bill of materials are scripts beside their tests, which import them by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
