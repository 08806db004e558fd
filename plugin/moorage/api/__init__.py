"""What is said on the wire: protocols, values, errors, one JSON codec."""
