"""Makes `mlflow_scripted`, a broker whose story is written down, importable by tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
