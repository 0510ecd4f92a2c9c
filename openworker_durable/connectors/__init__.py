"""Connectors that come with this package, as models for authors of connectors.

A connector is a tool whose effect can be looked up afterwards: it sends something that names the
execution, and its reconciler looks for that name. `mail` is one in full.
"""
