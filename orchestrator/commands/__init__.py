"""The commands, each module by what they are about."""
