"""Rules, runbooks and routes, and the form of the rules that the Prometheus operator takes."""
