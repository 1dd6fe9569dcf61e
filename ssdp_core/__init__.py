"""The mathematics of semi-sensitive differential privacy."""
