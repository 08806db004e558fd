"""For tests: a pytest plugin, fake fleets with real agents, faithful metadata servers, Airflow standalone."""
