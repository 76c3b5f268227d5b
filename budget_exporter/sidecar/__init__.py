"""The sidecar: sources in, Snapshots out; the only room that knows all the others."""
