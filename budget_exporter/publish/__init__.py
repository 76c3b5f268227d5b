"""Render Snapshots: metrics, page, HTTP."""
