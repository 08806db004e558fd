"""Seeded, virtual time: the same `decide` that runs in production, over fleets and jobs that exist only as numbers."""
