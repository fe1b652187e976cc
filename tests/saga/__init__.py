"""Sagas: in memory and durable, against a model, against rivals' mistakes, and with processes that are killed."""
