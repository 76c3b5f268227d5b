"""Pure: compare plan, the engine's own words and measurement, and judge."""
