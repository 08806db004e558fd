"""A recorder over a scripted broker, as a process that tests can kill: FOLDER LEASE SPEED TRACKING_URI EXPERIMENT."""

import signal
import sys
import threading
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from mlflow_scripted import Scripted

from moorage.mlflow import Recorder


def main() -> None:
    folder, lease, speed, uri, experiment = sys.argv[1:]
    source = Scripted.opened(Path(folder), lease, float(speed))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    recorder = Recorder(
        source,
        uri,
        experiment=experiment,
        spool=Path(folder) / "spool",
        cost_every_s=5,
        flush_every_s=0.3,
        now=source.now,
    )
    recorder.run(stop)


main()
