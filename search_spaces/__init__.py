"""The shipped searches: YAML files, found by name (`orchestrator search pfml`)."""
