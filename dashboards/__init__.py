"""Grafana dashboards as code: ``engine.json`` is built by ``python -m dashboards.engine``, never by hand."""
