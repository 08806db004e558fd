"""Makes the builders importable: `from core_builders import node, request, ...`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
