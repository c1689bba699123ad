"""The routes of ProRL Agent's first release, for trainers that use only those.

The contract has no authentication: a process serves one tenant, on loopback or to the configured addresses. Every
client (an address, or a name in the path) sees a server of its own: what it starts, stops, cancels and registers does
not affect other clients. `docs/reference/compat.md` lists the contract and where we differ.
"""
