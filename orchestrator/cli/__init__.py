"""The command line: what a user types and sees. It decides nothing about a search, and only `api` imports it."""
