"""Hosts: the reference host, and the one adapter that attaches to it and to OpenWorker."""
