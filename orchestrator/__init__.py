"""A Ray-distributed experiment orchestrator for deep metric learning."""
