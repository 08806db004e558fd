"""What Airflow's provider discovery reads, in every process: this module must stay free of imports."""


def get_provider_info() -> dict[str, object]:
    """The provider's metadata, in the form of Airflow's provider_info.schema.json."""
    integration = "Moorage"
    return {
        "package-name": "moorage",
        "name": "Moorage",
        "description": "Leases GPUs for Airflow tasks: topology-aware, elastic, durable across interruptions.",
        "versions": ["0.1.0"],
        "integrations": [{"integration-name": integration, "tags": ["software"]}],
        "operators": [
            {
                "integration-name": integration,
                "python-modules": ["moorage.airflow.operators", "moorage.airflow.reserve"],
            }
        ],
        "hooks": [{"integration-name": integration, "python-modules": ["moorage.airflow.hook"]}],
        "triggers": [{"integration-name": integration, "python-modules": ["moorage.airflow.triggers"]}],
        "connection-types": [
            {
                "connection-type": "moorage",
                "hook-class-name": "moorage.airflow.hook.MoorageHook",
                "hook-name": "Moorage",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "login", "port", "extra"],
                    "relabeling": {"host": "Broker URL", "password": "Token"},
                    "placeholders": {"host": "http://moorage:8740", "password": "a submitter's token"},
                },
            }
        ],
        "task-decorators": [{"name": "gpu", "class-name": "moorage.airflow.decorators.gpu_task"}],
        "extra-links": ["moorage.airflow.links.FleetLink"],
        "asset-uris": [{"schemes": ["moorage"], "handler": None}],
    }
