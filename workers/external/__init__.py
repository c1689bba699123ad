"""Agents of others: a harness acts in the sandbox and asks the policy over the APIs that it knows."""
