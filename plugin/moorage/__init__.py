"""Moorage leases GPUs: one placement engine for Airflow tasks, Ray clusters and Kubernetes pods."""

__version__ = "0.1.0"
