"""The server behind the store: its connections and address, its faults, its users, and whether it is fit."""
