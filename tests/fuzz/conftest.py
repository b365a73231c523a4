"""Makes the targets importable by name, as they are for the campaigns."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
