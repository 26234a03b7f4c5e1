"""The commands, a module for each group; `orchestrator.cli` gives them their names and order."""
