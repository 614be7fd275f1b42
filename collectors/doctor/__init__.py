"""Finds problems of a deployment: `inspection.py` collects facts, `checks.py` judges them."""
