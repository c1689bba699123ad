"""Routing that feels the backends: what they tell, what is concluded, and which turns may begin."""
