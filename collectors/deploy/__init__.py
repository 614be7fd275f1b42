"""What `amcast generate` writes: units, containers, a chart, alerts and a dashboard."""
