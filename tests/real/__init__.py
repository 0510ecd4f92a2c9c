"""Tests on the real OpenWorker; they are skipped where `coworker` cannot be imported."""
