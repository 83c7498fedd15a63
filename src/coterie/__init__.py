"""Coterie: federated learning for clients that differ."""
