"""Remembers: the only owner of state. The api over SQLAlchemy and Alembic, one writer."""

from moorage.broker.broker import Broker
from moorage.broker.clock import Clock, FakeClock, SystemClock

__all__ = ["Broker", "Clock", "FakeClock", "SystemClock"]
