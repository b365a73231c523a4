"""Makes the scripts of the audit and of the bill of materials importable by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
